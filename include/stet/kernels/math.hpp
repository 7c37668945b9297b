// Double-precision scalar functions for code outside the kernels: RoPE tables and the sampler. They
// use only IEEE 754 +, -, *, / and bit operations, in one fixed order (no libm, no fused
// multiply-add). Every compiler and architecture therefore returns the same bits. The rounding mode
// must be to nearest.
//
// Errors are the largest that the sweeps of tests/kernels/math.cpp measured, in units in the last
// place of the double result. The tests fail for larger ones.
#pragma once

#include <cstddef>

#include "stet/api.h"

namespace stet::math {

// Returns e^x. Error < 0.66 ULP (0.51 within |x| < 0.01; 0.8 of the denormal spacing if the result
// is denormal). Overflows to inf above 709.78, underflows gradually to 0 below -708.39. exp(nan) is
// nan.
STET_API double exp(double x);
// Sets x[i] = exp(x[i]), with the same bits, several elements at a time.
STET_API void exp_all(double* x, size_t n);

// Returns the natural logarithm. Error < 0.501 ULP, denormal arguments included. log(0) is -inf,
// log(inf) is inf. Returns nan for x < 0 and for nan.
STET_API double log(double x);

// Returns base^y for base > 0. Error < 0.66 ULP over the whole range. Overflow and underflow are
// those of exp. pow(x, 0) and pow(1, y) are 1 for any other argument. Zero and infinite bases and
// exponents give their limits. Returns nan for base < 0 and for other nan arguments.
STET_API double pow(double base, double y);

// Computes *s = sin(x) and *c = cos(x), x in radians. Error < 0.8 ULP for |x| <= 1e7, which covers
// the RoPE angles of all positions below ten million. Beyond 1e7, and for infinities and nan, both
// are nan instead of an inaccurate value.
STET_API void sincos(double x, double* s, double* c);

}  // namespace stet::math
