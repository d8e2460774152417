#include "data/prepare/worker.h"

#include <fmt/format.h>

#include "core/error.h"

namespace megatrain {

EncodingOptions::Set BlockEncoder::set_of(const Record& first, const RowFormat& format) {
  if (first.kind == Record::text) return EncodingOptions::text;
  const Row row = parse_row(first.data, format);
  return row.kind == Row::document ? EncodingOptions::text
         : row.kind == Row::pair   ? EncodingOptions::pairs
                                   : EncodingOptions::marked;
}

void BlockEncoder::encode_text(const Record& r, bool begins, EncodedBlock& out, int64_t number) const {
  EncodedDocument d;
  d.number = number, d.begins = begins;
  tokenizer_.encode_ordinary(r.data, d.ids);
  if (options_.whole_documents && begins && !r.more) d.ids = tokenizer_.with_special_tokens(d.ids);
  if (options_.end_documents && !r.more) {
    const int32_t end = tokenizer_.end_of_text();
    if (d.ids.empty() || d.ids.back() != end) d.ids.push_back(end);
  }
  out.documents.push_back(std::move(d));
}

void BlockEncoder::encode_row(const Row& row, EncodedBlock& out, int64_t number) const {
  if (options_.set == EncodingOptions::text) {
    if (row.kind != Row::document) fail("is no text, but the set's first row is; give such rows apart");
    Record r;
    r.data = row.text;
    return encode_text(r, true, out, number);
  }
  if ((row.kind == Row::pair) != (options_.set == EncodingOptions::pairs))
    fail("preference pairs and other examples do not go into one set; give them apart");
  std::vector<EncodedDocument> made;
  for (const Row& side : row.kind == Row::pair ? row.sides : std::vector<Row>{row}) {
    const Example e = examples_.encode(side);
    EncodedDocument d;
    d.number = number, d.ids = e.ids;
    d.trained.assign(e.trained.begin(), e.trained.end());
    made.push_back(std::move(d));
  }
  for (EncodedDocument& d : made) out.documents.push_back(std::move(d));
}

EncodedBlock BlockEncoder::encode(const Block& block) const {
  EncodedBlock out;
  int64_t number = block.first_document;
  bool begins = !block.continues;
  for (const Record& r : block.records) {
    out.bytes += static_cast<int64_t>(r.data.size());
    try {
      if (r.kind == Record::refused) fail(r.data);
      if (r.kind == Record::text)
        encode_text(r, begins, out, number);
      else
        encode_row(parse_row(r.data, options_.format), out, number);
    } catch (const Error& e) {
      out.refused.push_back({fmt::format("{}:{}", block.path, r.number), e.what()});
    }
    begins = !r.more;
    number += begins;
    out.rows += begins;
  }
  return out;
}

}  // namespace megatrain
