#include "io/families/family.h"

namespace megatrain {

const std::vector<HfFamily>& families() {
  static const std::vector<HfFamily> all = {kGpt2Family, kLlamaFamily, kQwen2Family, kQwen3Family,
                                            kMistralFamily};
  return all;
}

const HfFamily* find_family(const std::string& model_type) {
  for (const HfFamily& f : families())
    if (model_type == f.model_type) return &f;
  return nullptr;
}

}  // namespace megatrain
