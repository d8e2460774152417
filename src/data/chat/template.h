#pragma once
// defines: ChatTemplate, Conversation — the Jinja of a tokenizer_config.json, rendered as transformers does.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace megatrain {

/// A subset of Jinja 2 that covers published chat templates: what it lacks it refuses by name and line.
/// Templates are not trusted: steps, text and nesting are bounded, and nothing outside of the context can be
/// reached.
class ChatTemplate {
 public:
  /// Throws Error with the line of a syntax error; `where` starts it.
  ChatTemplate(const std::string& source, std::string where);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  struct Rendered {
    std::string text;
    std::vector<std::pair<size_t, size_t>>
        generated;  ///< bytes inside {% generation %}: what the assistant said
  };
  /// `context`: messages, add_generation_prompt, tools, bos_token, ...
  Rendered render(const nlohmann::ordered_json& context) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The template of a model directory with its special tokens.
class ChatFormat {
 public:
  /// From chat_template.jinja or tokenizer_config.json; empty when there is none.
  static std::optional<ChatFormat> load(const std::string& directory);
  ChatTemplate::Rendered render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                const nlohmann::ordered_json& tools = nullptr) const;

 private:
  ChatFormat(ChatTemplate t, nlohmann::ordered_json context)
      : template_(std::move(t)), context_(std::move(context)) {}
  ChatTemplate template_;
  nlohmann::ordered_json context_;  // bos_token, eos_token, ...
};

}  // namespace megatrain
