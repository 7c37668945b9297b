// Choices that depend on the model of the processor. No result depends on them.
#pragma once

namespace stet {

// The model of an x86-64 processor, as CPUID reports it. Includes the extended family and model.
struct Processor {
  bool intel;
  int family, model;
};

// Returns true if prompts of the contract bf16 are faster by two FMAs for each pair of inputs than
// by VDPBF16PS. On an Emerald Rapids that instruction reaches 87 GFLOP/s a core, and FMA 176. The
// other models have the same unit or its successor, and are treated alike until they are measured.
bool reads_prompts_by_fma(const Processor& processor);

}  // namespace stet
