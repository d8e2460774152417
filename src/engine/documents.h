#pragma once
// defines: find_documents — where the documents of a packed micro-batch lie.

#include <vector>

#include "ops/ops.h"

namespace megatrain {

/// positions [n]: each token's place in its document; a document starts where it is 0 and at every multiple
/// of seq_len. Fills spans [2, n] (first tokens, then lengths; longest first) and groups documents whose
/// lengths round up to the same power of two, 128 at least. Throws std::logic_error when places do not count
/// up.
std::vector<DocumentGroup> find_documents(const int32_t* positions, int64_t n, int64_t seq_len,
                                          int32_t* spans);

}  // namespace megatrain
