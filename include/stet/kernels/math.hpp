// Scalar functions in double precision for everything outside the kernels: RoPE tables and the
// sampler. Built of IEEE-754 +, -, *, / and bit operations alone (no libm, no fused multiply-add),
// in one fixed order, so that every compiler and architecture returns the same bits. Rounding must
// be to nearest.
//
// The errors are the largest that the sweeps of tests/kernels/math.cpp measured, in units in the
// last place of the double result; the tests refuse more.
#pragma once

#include <cstddef>

#include "stet/api.h"

namespace stet::math {

// e^x. Error < 0.66 ULP (0.51 within |x| < 0.01; 0.8 of the denormal spacing where the result is
// denormal). Overflows to inf above 709.78, underflows gradually to 0 below -708.39. exp(nan) is
// nan.
STET_API double exp(double x);
// x[i] = exp(x[i]), the same bits, several at a time.
STET_API void exp_all(double* x, size_t n);

// Natural logarithm. Error < 0.501 ULP, denormal arguments included. log(0) is -inf, log(inf) is
// inf; nan for x < 0 and for nan.
STET_API double log(double x);

// base^y for base > 0. Error < 0.66 ULP over the whole range; overflow and underflow as of exp.
// pow(x, 0) and pow(1, y) are 1, whatever the other argument; zero and infinite bases and exponents
// give their limits; nan for base < 0 and for other nan arguments.
STET_API double pow(double base, double y);

// *s = sin(x), *c = cos(x), x in radians. Error < 0.8 ULP for |x| <= 1e7, which the RoPE angle of
// any position below ten million keeps. nan for |x| > 1e7, infinities and nan: never a silently
// poor value.
STET_API void sincos(double x, double* s, double* c);

}  // namespace stet::math
