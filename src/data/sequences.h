#pragma once
// defines: SequenceOptions, Sequences — a token file as rows of seq_len tokens: windows of a stream, one
// document a row, or several documents packed into a row.

#include <string>
#include <vector>

#include "data/token_file.h"

namespace megatrain {

struct SequenceOptions {
  int64_t seq_len = 0;
  /// stream: windows over everything. pad: a document a row. pack: whole documents side by side, as few rows
  /// as best-fit finds (Ding et al. 2024). auto: pack for marked sets, else stream.
  std::string packing = "auto";
  /// Documents longer than seq_len + 1 tokens. right, left: that side is cut off. split: into several. drop.
  std::string truncation = "right";
};

/// A batch of rows, as the engine takes it.
struct Batch {
  std::vector<int32_t> tokens, targets;  ///< [rows · seq_len]; a negative target is ignored
  std::vector<int32_t> positions;        ///< place in the document
  void resize(int64_t rows, int64_t seq_len);
};

/// Documents that train nothing (no target is left) are left out and counted. Reading is thread-safe.
class Sequences {
 public:
  /// Keeps a reference to the file. Throws Error when there is nothing to train on.
  Sequences(const TokenFile& file, const SequenceOptions& options);

  int64_t count() const { return count_; }  ///< rows of one epoch
  bool packed() const { return layout_ == pack; }
  bool stream() const { return layout_ == windows; }
  const TokenFile& file() const { return file_; }
  /// Row i; returns its number of targets. Writes seq_len values to each.
  int64_t read(int64_t i, int32_t* tokens, int32_t* targets, int32_t* positions) const;
  /// A window of the stream that starts anywhere in [0, size - seq_len).
  void read_window(int64_t first, int32_t* tokens, int32_t* targets, int32_t* positions) const;
  /// With the last, partial window of a stream (evaluation reads all of it).
  int64_t count_with_partial() const;

  struct Summary {
    int64_t documents = 0, untrained = 0, cut = 0, dropped = 0, tokens = 0;
    std::string text() const;  ///< "12 documents in 4 rows (98% full), 3 cut, ..."
    int64_t rows = 0, seq_len = 0;
  };
  const Summary& summary() const { return summary_; }

 private:
  enum Layout { windows, pad, pack };
  /// `inputs` tokens from `first`, each with the next as its target.
  struct Piece {
    uint64_t first;
    uint32_t inputs;
  };
  void find_pieces(const std::string& truncation);
  void cut(int64_t first, int64_t size, const std::string& truncation);
  void add(int64_t first, int64_t inputs);
  void fill_rows();
  int64_t read_piece(const Piece& piece, int32_t* tokens, int32_t* targets, int32_t* positions) const;

  const TokenFile& file_;
  int64_t seq_len_, count_ = 0;
  Layout layout_;
  std::vector<Piece> pieces_;   // pack: in the order of the rows
  std::vector<uint64_t> rows_;  // pack: first piece of each row, and the end
  Summary summary_;
};

/// Best-fit decreasing: which bin of `capacity` each item goes to. Items longer than capacity are refused
/// (std::logic_error). O(n log capacity).
std::vector<uint32_t> best_fit(const std::vector<uint32_t>& lengths, uint32_t capacity);

}  // namespace megatrain
