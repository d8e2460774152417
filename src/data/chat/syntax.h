#pragma once
// defines: Node, parse_template — a Jinja template as a tree.

#include <memory>
#include <string>
#include <vector>

#include "data/chat/value.h"

namespace megatrain::chat {

enum class Kind {
  // statements
  text,
  output,
  block,
  if_,
  for_,
  set,
  set_block,
  macro,
  call_block,
  filter_block,
  generation,
  break_,
  continue_,
  // expressions
  literal,
  name,
  list,
  dict,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  unary,
  binary,
  compare,
  and_,
  or_,
  not_,
  conditional
};

/// One kind of node; which members it uses depends on the kind (syntax.cpp says so where it makes them).
struct Node {
  Kind kind;
  int line = 0;
  std::string name;                             // name, attribute, filter, test, operator, text
  Value value;                                  // literal
  std::vector<std::unique_ptr<Node>> children;  // operands, arguments, parts
  std::vector<std::string> names;               // targets, parameters, operators of a comparison, keywords
  std::vector<std::unique_ptr<Node>> body, otherwise;
};
using NodePtr = std::unique_ptr<Node>;
using Nodes = std::vector<NodePtr>;

/// With trim_blocks, lstrip_blocks and loop controls, as transformers sets Jinja up. Throws TemplateError
/// with the line. Nesting is bounded.
Nodes parse_template(const std::string& source);

}  // namespace megatrain::chat
