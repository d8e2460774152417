#pragma once
// defines: Token, tokenize — a Jinja template's text and tags.

#include <string>
#include <vector>

namespace megatrain::chat {

struct Token {
  enum Type {
    text,
    block_begin,
    block_end,
    output_begin,
    output_end,
    name,
    string,
    integer,
    real,
    symbol,
    end
  };
  Type type;
  std::string value;
  int line;
};

std::vector<Token> tokenize(const std::string& source);

}  // namespace megatrain::chat
