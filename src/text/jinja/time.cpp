// strftime of local time, like Python's datetime.now().strftime(format).
#include <cmath>
#include <ctime>

#include "src/text/jinja/context.hpp"

namespace stet::jinja {
namespace {

// Formats one conversion that the C library knows.
std::string convert(const std::string& conversion, const std::tm& local) {
  char buffer[256];
  // A result may be empty. The leading character distinguishes that from one that does not fit.
  const size_t size = std::strftime(buffer, sizeof buffer, ("." + conversion).c_str(), &local);
  return size == 0 ? "" : std::string(buffer + 1, size - 1);
}

}  // namespace

std::string format_time(Context& c, double seconds, const std::string& format) {
  if (!(std::abs(seconds) < 1e11))
    c.fail(ErrorKind::argument, "a time within a few thousand years", float_repr(seconds));
  const double whole = std::floor(seconds);
  const auto time = static_cast<std::time_t>(whole);
  std::tm local{};
  if (localtime_r(&time, &local) == nullptr)
    c.fail("a time that can be shown", float_repr(seconds));
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i];
      continue;
    }
    const size_t begin = i++;
    i = std::min(format.find_first_not_of("_-^#EO", i), format.size() - 1);
    switch (format[i]) {
      case 'f': {
        const std::string micro = std::to_string(static_cast<int64_t>((seconds - whole) * 1e6));
        out += std::string(6 - std::min<size_t>(micro.size(), 6), '0') + micro;
        break;
      }
      case 'z':
      case 'Z':
        break;  // a local time has no zone
      default:
        out += convert(format.substr(begin, i + 1 - begin), local);
    }
    c.expect_memory(out.size());
  }
  return out;
}

}  // namespace stet::jinja
