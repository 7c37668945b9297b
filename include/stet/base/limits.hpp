// What a file from a stranger may ask for. Readers hold the numbers they find against these before
// they use them as a count, a size, an index or a shape, so that neither memory nor time is spent
// on a lie. docs/security.md explains them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

// The shape of a model, in config.json and in a snapshot. Products of two of these fit 64 bits.
// Of any dimension; the largest published is below 2^19.
constexpr int64_t kMaxSize = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1024, kMaxHeads = 1024, kMaxHeadDim = 1024;
constexpr int64_t kMaxPositions = int64_t{1} << 24;

// Of a snapshot.
constexpr size_t kMaxMetaBytes = size_t{16} << 20;  // its META section
// Keys and values of 64 positions; 0.6 GB for the largest published shape.
constexpr size_t kMaxBlockBytes = size_t{1} << 30;
constexpr uint64_t kMaxDeflateRatio = 1100;  // of a compressed block; deflate reaches 1032
// In the log of a state: prunes, and tokens that shifts took out.
constexpr size_t kMaxPrunes = size_t{1} << 17, kMaxRemoved = size_t{1} << 21;
constexpr size_t kMaxParents = 256;                        // deltas in a chain
constexpr size_t kMaxParentsMetaBytes = size_t{64} << 20;  // META sections of a chain
// What the compressed blocks of one file may become: this many bytes, and this many times the
// file's size. A writer stores blocks as they are where they would go beyond that.
constexpr uint64_t kExpandedBytes = uint64_t{32} << 20, kExpandedRatio = 2;

// The values of a JSON text in memory may take this many bytes, and this many times the text's
// size.
constexpr size_t kJsonBytes = size_t{24} << 20, kJsonRatio = 3;

// Of a checkpoint.
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxTokenizerJson = size_t{256} << 20;  // tokenizer.json; Gemma 3's has 33 MB
constexpr size_t kMaxTokenizerModel = size_t{64} << 20;  // tokenizer.model; Gemma 3's has 4.7 MB
// tokenizer_config.json, chat_template.jinja
constexpr size_t kMaxTokenizerConfig = size_t{16} << 20;
constexpr size_t kMaxPieces = size_t{1} << 19, kMaxMerges = size_t{1} << 20;  // of tokenizer.json
// Added tokens, and the bytes of all their texts.
constexpr size_t kMaxAddedTokens = 16384, kMaxAddedBytes = size_t{1} << 19;
constexpr size_t kMaxTemplates = size_t{1} << 20;  // bytes of all chat templates of a tokenizer
constexpr size_t kMaxSteps = 64;                   // of a normalizer, a pre-tokenizer, a decoder
constexpr size_t kMaxSurrounding = 1024;           // tokens put before a text, and after it
// precompiled_charsmap; sentencepiece's own have 0.3 MB.
constexpr size_t kMaxCharacterMap = size_t{2} << 20;
constexpr size_t kMaxReplacement = 128;   // bytes that one match of it may become
constexpr size_t kMaxDecoderGrowth = 64;  // times that a decoder may make a piece longer

// Of a text that is tokenized: what its normalizer makes of it may take this many bytes, and this
// many times its size; words that are made anew may take that many times its size; and matching may
// take so much processor time, and so much for each byte.
constexpr size_t kTextBytes = size_t{16} << 20, kTextRatio = 8, kKeptRatio = 48;
constexpr double kMatchSeconds = 5, kMatchSecondsPerByte = 1e-6;

}  // namespace stet
