#include "data/chat/syntax.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/chat/lexer.h"

namespace megatrain::chat {
namespace {

constexpr int kMaxNesting = 64, kMaxLinks = 500;

class Parser {
 public:
  explicit Parser(const std::string& source) : tokens_(tokenize(source)) {}
  Nodes run() {
    Nodes out = statements({});
    if (peek().type != Token::end) refuse("this tag closes nothing");
    return out;
  }

 private:
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token next() {
    if (peek().type == Token::block_begin || peek().type == Token::output_begin) links_ = 0;
    return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_];
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw TemplateError(fmt::format("line {}: {}", peek().line, what));
  }
  bool is(const char* value, size_t ahead = 0) const {
    const Token& t = peek(ahead);
    return (t.type == Token::symbol || t.type == Token::name) && t.value == value;
  }
  bool accept(const char* value) {
    if (!is(value)) return false;
    next();
    return true;
  }
  void expect(const char* value) {
    if (!accept(value)) refuse(fmt::format("'{}' was expected, not '{}'", value, peek().value.substr(0, 40)));
  }
  std::string identifier() {
    if (peek().type != Token::name) refuse("a name was expected");
    return next().value;
  }
  NodePtr make(Kind kind) const {
    auto n = std::make_unique<Node>();
    n->kind = kind, n->line = peek().line;
    return n;
  }
  struct Nesting {
    explicit Nesting(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxNesting) parser.refuse("nested too deeply");
    }
    ~Nesting() { --parser.depth_; }
    Parser& parser;
  };

  // ---- statements

  // Up to a block whose first word is in `until` (which stays to be read) or the end.
  Nodes statements(const std::vector<std::string>& until) {
    const Nesting nesting(*this);
    Nodes out;
    for (;;) {
      const Token& t = peek();
      if (t.type == Token::end) return out;
      if (t.type == Token::text) {
        out.push_back(make(Kind::text));
        out.back()->name = next().value;
      } else if (t.type == Token::output_begin) {
        next();
        out.push_back(make(Kind::output));
        out.back()->children.push_back(expression_or_tuple());
        close(Token::output_end);
      } else {
        if (std::find(until.begin(), until.end(), peek(1).value) != until.end()) return out;
        next();
        out.push_back(statement());
      }
    }
  }

  void close(Token::Type type) {
    if (peek().type != type)
      refuse(fmt::format("the tag should end before '{}'", peek().value.substr(0, 40)));
    next();
  }
  void end_block() { close(Token::block_end); }

  Nodes body_until(const char* word) {
    end_block();
    Nodes body = statements({word});
    close_with(word);
    return body;
  }
  void close_with(const char* word) {
    if (peek().type != Token::block_begin) refuse(fmt::format("'{}' is missing", word));
    next();
    expect(word);
    if (peek().type == Token::name) next();  // {% endmacro name %}
    end_block();
  }

  NodePtr statement() {
    const std::string word = identifier();
    if (word == "if") return if_statement();
    if (word == "for") return for_statement();
    if (word == "set") return set_statement();
    if (word == "macro") return macro();
    if (word == "call") return call_block();
    NodePtr n = make(word == "break"      ? Kind::break_
                     : word == "continue" ? Kind::continue_
                                          : Kind::generation);
    if (word == "filter") {
      n->kind = Kind::filter_block;
      n->children.push_back(filters(nullptr));
      n->body = body_until("endfilter");
    } else if (word == "generation") {
      n->body = body_until("endgeneration");
    } else if (word == "break" || word == "continue") {
      end_block();
    } else {
      refuse(fmt::format("the tag '{}' is not supported", word.substr(0, 40)));
    }
    return n;
  }

  NodePtr if_statement() {
    const Nesting nesting(*this);
    NodePtr n = make(Kind::if_);
    n->children.push_back(expression_or_tuple());
    end_block();
    n->body = statements({"elif", "else", "endif"});
    if (peek().type != Token::block_begin) refuse("'endif' is missing");
    next();
    if (accept("elif")) {
      n->otherwise.push_back(if_statement());
      return n;  // the inner one has read endif
    }
    if (accept("else")) {
      end_block();
      n->otherwise = statements({"endif"});
      if (peek().type != Token::block_begin) refuse("'endif' is missing");
      next();
    }
    expect("endif");
    end_block();
    return n;
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool paren = accept("(");
    do {
      if (!names.empty() && !(peek().type == Token::name && !is("in"))) break;
      names.push_back(identifier());
    } while (accept(","));
    if (paren) expect(")");
    return names;
  }

  NodePtr for_statement() {
    NodePtr n = make(Kind::for_);
    n->names = targets();
    expect("in");
    n->children.push_back(without_condition_expression());
    n->children.push_back(accept("if") ? expression() : nullptr);
    if (is("recursive")) refuse("recursive loops are not supported");
    end_block();
    n->body = statements({"else", "endfor"});
    if (peek().type != Token::block_begin) refuse("'endfor' is missing");
    next();
    if (accept("else")) {
      end_block();
      n->otherwise = statements({"endfor"});
      if (peek().type != Token::block_begin) refuse("'endfor' is missing");
      next();
    }
    expect("endfor");
    end_block();
    return n;
  }

  // names: targets; or name.attribute (namespaces): names = {object}, name = attribute.
  NodePtr set_statement() {
    NodePtr n = make(Kind::set);
    n->names = targets();
    if (accept(".")) n->name = identifier();
    if (accept("=")) {
      n->children.push_back(expression_or_tuple());
      end_block();
      return n;
    }
    n->kind = Kind::set_block;
    n->children.push_back(is("|") ? filters(nullptr) : nullptr);
    n->body = body_until("endset");
    return n;
  }

  // names: parameters; children: defaults, aligned, null where there is none.
  void parameters(Node& n) {
    expect("(");
    while (!accept(")")) {
      n.names.push_back(identifier());
      n.children.push_back(accept("=") ? expression() : nullptr);
      if (!is(")")) expect(",");
    }
  }

  NodePtr macro() {
    NodePtr n = make(Kind::macro);
    n->name = identifier();
    parameters(*n);
    n->body = body_until("endmacro");
    return n;
  }

  NodePtr call_block() {
    NodePtr n = make(Kind::call_block);
    if (is("(")) parameters(*n);
    n->children.push_back(expression());  // the last child: the call
    if (n->children.back()->kind != Kind::call) refuse("a call was expected");
    n->body = body_until("endcall");
    return n;
  }

  // ---- expressions

  NodePtr expression_or_tuple() {
    NodePtr first = expression();
    if (!is(",")) return first;
    NodePtr n = make(Kind::list);
    n->children.push_back(std::move(first));
    while (accept(",")) {
      if (peek().type == Token::block_end || peek().type == Token::output_end) break;
      n->children.push_back(expression());
    }
    return n;
  }

  NodePtr expression() {
    const Nesting nesting(*this);
    NodePtr value = or_expression();
    for (; accept("if"); link()) {
      NodePtr n = make(Kind::conditional);
      n->children.push_back(std::move(value));
      n->children.push_back(or_expression());
      n->children.push_back(accept("else") ? expression() : nullptr);
      value = std::move(n);
    }
    return value;
  }
  // In "for x in list if condition" the if belongs to the loop.
  NodePtr without_condition_expression() {
    NodePtr first = or_expression();
    if (!is(",")) return first;
    NodePtr n = make(Kind::list);
    n->children.push_back(std::move(first));
    while (accept(",")) n->children.push_back(or_expression());
    return n;
  }

  // Chains make trees as deep as they are long; counted over one tag.
  void link() {
    if (++links_ > kMaxLinks) refuse("the expression is too long");
  }

  NodePtr pair(Kind kind, const std::string& op, NodePtr left, NodePtr right) {
    NodePtr n = make(kind);
    n->name = op;
    n->children.push_back(std::move(left)), n->children.push_back(std::move(right));
    return n;
  }

  NodePtr or_expression() {
    NodePtr left = and_expression();
    for (; accept("or"); link()) left = pair(Kind::or_, "or", std::move(left), and_expression());
    return left;
  }
  NodePtr and_expression() {
    NodePtr left = not_expression();
    for (; accept("and"); link()) left = pair(Kind::and_, "and", std::move(left), not_expression());
    return left;
  }
  NodePtr not_expression() {
    if (!is("not")) return comparison();
    const Nesting nesting(*this);
    NodePtr n = make(Kind::not_);
    next();
    n->children.push_back(not_expression());
    return n;
  }

  // children: operands; names: the operators between them.
  NodePtr comparison() {
    NodePtr first = sum();
    NodePtr n;
    for (;;) {
      std::string op;
      for (const char* o : {"==", "!=", "<=", ">=", "<", ">", "in"})
        if (op.empty() && is(o)) op = o;
      if (op.empty() && is("not") && is("in", 1)) op = "not in", next();
      if (op.empty()) break;
      next();
      if (!n) {
        n = make(Kind::compare);
        n->children.push_back(std::move(first));
      }
      n->names.push_back(op);
      n->children.push_back(sum());
    }
    return n ? std::move(n) : std::move(first);
  }

  template <class F>
  NodePtr left_associative(std::initializer_list<const char*> operators, F operand) {
    NodePtr left = operand();
    for (;; link()) {
      const char* found = nullptr;
      for (const char* o : operators)
        if (!found && is(o) && peek().type == Token::symbol) found = o;
      if (!found) return left;
      next();
      left = pair(Kind::binary, found, std::move(left), operand());
    }
  }
  NodePtr sum() {
    return left_associative({"+", "-"}, [&] { return concatenation(); });
  }
  NodePtr concatenation() {
    return left_associative({"~"}, [&] { return product(); });
  }
  NodePtr product() {
    return left_associative({"*", "//", "/", "%"}, [&] { return power(); });
  }
  NodePtr power() {
    return left_associative({"**"}, [&] { return unary(true); });
  }

  NodePtr unary(bool with_filters) {
    const Nesting nesting(*this);
    NodePtr n;
    if (peek().type == Token::symbol && (is("-") || is("+"))) {
      n = make(Kind::unary);
      n->name = next().value;
      n->children.push_back(unary(false));
    } else {
      n = postfix(primary());
    }
    if (with_filters) n = filters_and_tests(std::move(n));
    return n;
  }

  NodePtr primary() {
    const Token t = peek();
    NodePtr n = make(Kind::literal);
    if (t.type == Token::string) {
      std::string text;
      while (peek().type == Token::string) text += next().value;
      n->value = Value(text);
    } else if (t.type == Token::integer) {
      n->value = Value(static_cast<int64_t>(std::stoll(next().value)));
    } else if (t.type == Token::real) {
      n->value = Value(std::strtod(next().value.c_str(), nullptr));
    } else if (t.type == Token::name) {
      word(*n);
    } else if (accept("(")) {
      return parenthesis();
    } else if (accept("[")) {
      n->kind = Kind::list;
      while (!accept("]")) {
        n->children.push_back(expression());
        if (!is("]")) expect(",");
      }
    } else if (accept("{")) {
      n->kind = Kind::dict;  // children: key, value, key, value...
      while (!accept("}")) {
        n->children.push_back(expression());
        expect(":");
        n->children.push_back(expression());
        if (!is("}")) expect(",");
      }
    } else {
      refuse(fmt::format("unexpected '{}'", t.value.substr(0, 40)));
    }
    return n;
  }

  void word(Node& n) {
    const std::string name = next().value;
    if (name == "true" || name == "True")
      n.value = Value(true);
    else if (name == "false" || name == "False")
      n.value = Value(false);
    else if (name == "none" || name == "None")
      n.value = Value::null();
    else
      n.kind = Kind::name, n.name = name;
  }

  NodePtr parenthesis() {
    if (accept(")")) return make(Kind::list);
    NodePtr first = expression();
    if (!is(",")) {
      expect(")");
      return first;
    }
    NodePtr n = make(Kind::list);
    n->children.push_back(std::move(first));
    while (accept(",")) {
      if (is(")")) break;
      n->children.push_back(expression());
    }
    expect(")");
    return n;
  }

  NodePtr postfix(NodePtr n) {
    for (;; link()) {
      if (is(".") && peek().type == Token::symbol) {
        next();
        NodePtr a = make(Kind::attribute);
        a->name = peek().type == Token::integer ? next().value : identifier();
        a->children.push_back(std::move(n));
        n = std::move(a);
      } else if (accept("[")) {
        n = subscript(std::move(n));
      } else if (is("(") && peek().type == Token::symbol) {
        n = call(std::move(n));
      } else {
        return n;
      }
    }
  }

  // slice: children = object, start, stop, step (null where absent).
  NodePtr subscript(NodePtr object) {
    NodePtr n = make(Kind::item);
    n->children.push_back(std::move(object));
    n->children.push_back(is(":") ? nullptr : expression());
    if (is(":")) {
      n->kind = Kind::slice;
      for (int i = 0; i < 2; ++i)
        n->children.push_back(accept(":") && !is(":") && !is("]") ? expression() : nullptr);
    }
    expect("]");
    return n;
  }

  // names: keyword of each argument, empty when positional.
  void arguments(Node& n) {
    expect("(");
    while (!accept(")")) {
      if (is("*") || is("**")) refuse("argument unpacking is not supported");
      std::string keyword;
      if (peek().type == Token::name && peek(1).type == Token::symbol && peek(1).value == "=")
        keyword = next().value, next();
      n.names.push_back(keyword);
      n.children.push_back(expression());
      if (!is(")")) expect(",");
    }
  }
  NodePtr call(NodePtr function) {
    NodePtr n = make(Kind::call);
    n->children.push_back(std::move(function));
    n->names.emplace_back();
    arguments(*n);
    return n;
  }

  // children[0]: what is filtered (null: the body of a filter block).
  NodePtr filters(NodePtr n) {
    bool first = !n && !is("|");  // {% filter upper %}
    for (; first || accept("|"); link()) {
      first = false;
      NodePtr f = make(Kind::filter);
      f->name = identifier();
      while (accept(".")) f->name += "." + identifier();
      f->children.push_back(std::move(n));
      f->names.emplace_back();
      if (is("(")) arguments(*f);
      n = std::move(f);
    }
    return n;
  }

  NodePtr filters_and_tests(NodePtr n) {
    for (;; link()) {
      if (is("|")) {
        n = filters(std::move(n));
      } else if (is("is") && peek().type == Token::name) {
        next();
        n = test(std::move(n));
      } else {
        return n;
      }
    }
  }

  NodePtr test(NodePtr subject) {
    const bool negated = accept("not");
    NodePtr n = make(Kind::test);
    n->name = peek().type == Token::symbol ? next().value : identifier();
    n->children.push_back(std::move(subject));
    n->names.emplace_back();
    const Token& t = peek();
    const bool starts_operand = t.type == Token::string || t.type == Token::integer ||
                                t.type == Token::real ||
                                (t.type == Token::symbol && (t.value == "[" || t.value == "{")) ||
                                (t.type == Token::name && !is("else") && !is("or") && !is("and") &&
                                 !is("is") && !is("if") && !is("in") && !is("not") && !is("recursive"));
    if (is("(")) {
      arguments(*n);
    } else if (starts_operand) {
      n->children.push_back(postfix(primary()));
      n->names.emplace_back();
    }
    if (!negated) return n;
    NodePtr inverse = make(Kind::not_);
    inverse->children.push_back(std::move(n));
    return inverse;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, links_ = 0;
};

}  // namespace

Nodes parse_template(const std::string& source) {
  return Parser(source).run();
}

}  // namespace megatrain::chat
