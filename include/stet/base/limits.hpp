// Limits for untrusted files. Readers check numbers from a file against these before using them as
// a count, size, index or shape. False numbers then cost neither memory nor time. docs/security.md
// explains them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

// The shape of a model in config.json and in a snapshot. A product of two of these fits 64 bits.
// kMaxSize applies to any dimension; the largest published one is below 2^19.
constexpr int64_t kMaxSize = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1024, kMaxHeads = 1024, kMaxHeadDim = 1024;
constexpr int64_t kMaxTaps = 64;  // inputs of a causal convolution
constexpr int64_t kMaxPositions = int64_t{1} << 24;

// Limits of a snapshot.
constexpr size_t kMaxMetaBytes = size_t{16} << 20;  // the META section
constexpr size_t kMaxEditSource = size_t{1} << 16;  // the text that names the sources of an edit
// Keys and values of 64 positions. The largest published shape needs 0.6 GB.
constexpr size_t kMaxBlockBytes = size_t{1} << 30;
constexpr uint64_t kMaxDeflateRatio = 1100;  // ratio of a compressed block; deflate reaches 1032
// The logs of a state: prunes, and tokens that shifts removed.
constexpr size_t kMaxPrunes = size_t{1} << 17, kMaxRemoved = size_t{1} << 21;
constexpr size_t kMaxParents = 256;                        // deltas in a chain
constexpr size_t kMaxParentsMetaBytes = size_t{64} << 20;  // META sections of a chain
// Largest total size of a file's expanded blocks: this many bytes plus this many times the file's
// size. A writer stores further blocks uncompressed.
constexpr uint64_t kExpandedBytes = uint64_t{32} << 20, kExpandedRatio = 2;

// Largest size of a JSON text's values in memory: this many bytes plus this many times the text.
constexpr size_t kJsonBytes = size_t{24} << 20, kJsonRatio = 3;

// Limits of a checkpoint.
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxTokenizerJson = size_t{256} << 20;  // Gemma 3's tokenizer.json has 33 MB
constexpr size_t kMaxTokenizerModel = size_t{64} << 20;  // Gemma 3's tokenizer.model has 4.7 MB
// tokenizer_config.json, chat_template.jinja
constexpr size_t kMaxTokenizerConfig = size_t{16} << 20;
constexpr size_t kMaxPieces = size_t{1} << 19, kMaxMerges = size_t{1} << 20;  // in tokenizer.json
// Added tokens, and the bytes of all their texts.
constexpr size_t kMaxAddedTokens = 16384, kMaxAddedBytes = size_t{1} << 19;
constexpr size_t kMaxTemplates = size_t{1} << 20;  // bytes of all chat templates of a tokenizer
constexpr size_t kMaxSteps = 64;                   // in a normalizer, a pre-tokenizer or a decoder
constexpr size_t kMaxSurrounding = 1024;           // tokens added before a text, and after it
// precompiled_charsmap; those of sentencepiece have 0.3 MB.
constexpr size_t kMaxCharacterMap = size_t{2} << 20;
constexpr size_t kMaxReplacement = 128;   // bytes that replace one match in it
constexpr size_t kMaxDecoderGrowth = 64;  // factor by which a decoder may lengthen a piece

// Limits for tokenizing a text. Its normalized form may take kTextBytes plus kTextRatio times its
// size. Rebuilt words may take kTextBytes plus kKeptRatio times its size. Matching may take this
// much processor time plus this much per byte.
constexpr size_t kTextBytes = size_t{16} << 20, kTextRatio = 8, kKeptRatio = 48;
constexpr double kMatchSeconds = 5, kMatchSecondsPerByte = 1e-6;

}  // namespace stet
