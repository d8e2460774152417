// Parquet through Arrow C++. Rows become JSON text, which the row formats read; a table of texts stays text.
#include "core/error.h"
#include "data/prepare/records.h"

#ifdef MT_WITH_PARQUET
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

#include <nlohmann/json.hpp>

namespace megatrain {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
T value_or_fail(arrow::Result<T> result, const std::string& path) {
  if (!result.ok()) fail(path + ": cannot be read as Parquet: " + result.status().message());
  return std::move(result).ValueOrDie();
}

Json json_of(const arrow::Array& a, int64_t i);

template <class List>
Json json_of_list(const List& a, int64_t i) {
  Json out = Json::array();
  for (int64_t at = a.value_offset(i); at < a.value_offset(i + 1); ++at)
    out.push_back(json_of(*a.values(), at));
  return out;
}

Json json_of_struct(const arrow::StructArray& a, int64_t i) {
  Json out = Json::object();
  for (int f = 0; f < a.num_fields(); ++f) out[a.struct_type()->field(f)->name()] = json_of(*a.field(f), i);
  return out;
}

Json json_of(const arrow::Array& a, int64_t i) {
  if (a.IsNull(i)) return nullptr;
  switch (a.type_id()) {
    case arrow::Type::STRING:
      return static_cast<const arrow::StringArray&>(a).GetString(i);
    case arrow::Type::LARGE_STRING:
      return static_cast<const arrow::LargeStringArray&>(a).GetString(i);
    case arrow::Type::BOOL:
      return static_cast<const arrow::BooleanArray&>(a).Value(i);
    case arrow::Type::INT32:
      return static_cast<const arrow::Int32Array&>(a).Value(i);
    case arrow::Type::INT64:
      return static_cast<const arrow::Int64Array&>(a).Value(i);
    case arrow::Type::FLOAT:
      return static_cast<const arrow::FloatArray&>(a).Value(i);
    case arrow::Type::DOUBLE:
      return static_cast<const arrow::DoubleArray&>(a).Value(i);
    case arrow::Type::LIST:
      return json_of_list(static_cast<const arrow::ListArray&>(a), i);
    case arrow::Type::LARGE_LIST:
      return json_of_list(static_cast<const arrow::LargeListArray&>(a), i);
    case arrow::Type::STRUCT:
      return json_of_struct(static_cast<const arrow::StructArray&>(a), i);
    default: {
      const auto scalar = a.GetScalar(i);  // dates and the like, as Arrow writes them
      return scalar.ok() ? Json((*scalar)->ToString()) : Json(nullptr);
    }
  }
}

class ParquetReader : public RecordReader {
 public:
  ParquetReader(const std::string& path, const RecordOptions& o) : path_(path) {
    const auto file = value_or_fail(arrow::io::ReadableFile::Open(path), path);
    bytes_ = value_or_fail(file->GetSize(), path);
    parquet::arrow::FileReaderBuilder builder;
    if (const auto status = builder.Open(file); !status.ok())
      fail(path + ": cannot be read as Parquet: " + status.message());
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(512), properties.set_pre_buffer(false), properties.set_use_threads(false);
    reader_ = value_or_fail(builder.properties(properties)->Build(), path);
    rows_ = reader_->parquet_reader()->metadata()->num_rows();
    std::vector<int> groups(static_cast<size_t>(reader_->num_row_groups()));
    for (size_t g = 0; g < groups.size(); ++g) groups[g] = static_cast<int>(g);
    const int column = text_column(o.text_column);
    text_ = column >= 0;
    batches_ = text_ ? value_or_fail(reader_->GetRecordBatchReader(groups, {column}), path)
                     : value_or_fail(reader_->GetRecordBatchReader(groups), path);
  }
  int64_t consumed() const override {
    return rows_ == 0 ? bytes_
                      : static_cast<int64_t>(static_cast<double>(bytes_) * static_cast<double>(number_) /
                                             static_cast<double>(rows_));
  }
  int64_t count_rest() override { return rows_ - number_; }

  bool next(Record& r) override {
    while (!batch_ || at_ == batch_->num_rows()) {
      batch_ = next_batch(), at_ = 0;
      if (!batch_) return false;
    }
    r = {};
    r.number = ++number_;
    fill(r, at_++);
    return true;
  }

 private:
  std::shared_ptr<arrow::RecordBatch> next_batch() {
    try {
      auto batch = value_or_fail(batches_->Next(), path_);
      if (batch)
        if (const auto status = batch->ValidateFull(); !status.ok())
          fail(path_ + ": is damaged: " + status.message());
      return batch;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      fail(path_ + ": cannot be read as Parquet: " + e.what());
    }
  }

  void fill(Record& r, int64_t i) const {
    Json row = Json::object();
    for (int c = 0; c < batch_->num_columns(); ++c)
      row[batch_->schema()->field(c)->name()] = json_of(*batch_->column(c), i);
    if (text_ && row.begin()->is_string()) {
      r.data = row.begin()->get<std::string>();
      return;
    }
    r.kind = Record::json;
    try {
      r.data = row.dump();
    } catch (const nlohmann::json::exception&) {
      r.kind = Record::refused, r.data = "is not valid UTF-8";
    }
  }

  // The column of texts, or -1 when rows are examples of another form.
  int text_column(const std::string& name) const {
    const auto* schema = reader_->parquet_reader()->metadata()->schema();
    for (const char* other : {"messages", "conversations", "instruction", "prompt", "chosen"})
      for (int c = 0; c < schema->num_columns(); ++c)
        if (schema->Column(c)->path()->ToDotVector()[0] == other) return -1;
    for (int c = 0; c < schema->num_columns(); ++c)
      if (schema->Column(c)->path()->ToDotString() == name) return c;
    return -1;
  }

  std::string path_;
  int64_t bytes_ = 0, rows_ = 0, at_ = 0, number_ = 0;
  bool text_ = false;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
};

}  // namespace

std::unique_ptr<RecordReader> open_parquet(const std::string& path, const RecordOptions& options) {
  try {
    return std::make_unique<ParquetReader>(path, options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(path + ": cannot be read as Parquet: " + e.what());
  }
}

}  // namespace megatrain

#else

namespace megatrain {

std::unique_ptr<RecordReader> open_parquet(const std::string& path, const RecordOptions&) {
  fail(
      path +
      ": this build reads no Parquet; run scripts/setup_parquet.sh and build again, or convert it to .jsonl");
}

}  // namespace megatrain
#endif
