namespace megatrain { void placeholder() {} }
