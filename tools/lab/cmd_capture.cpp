// stet capture: activations at points of the forward pass, into a file.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "stet/base/error.hpp"
#include "stet/generate/generate.hpp"
#include "tools/lab/lab.hpp"
#include "tools/lab/tensor_file.hpp"

namespace stet::tool {
namespace {

struct CaptureCommand {
  LabOptions lab;
  std::string points, output;
  int64_t generate = 0;
  bool list = false;
};

void list_points(const ModelConfig& c) {
  for (int i = 0; i < kPoints; ++i) {
    const auto p = static_cast<Point>(i);
    if (!has_point(c, p)) continue;
    const int64_t heads = point_heads(c, p);
    out(fmt::format("{}{}  [{}]{}\n", point_info(p).of_layer ? "blocks.N." : "", point_info(p).name,
                    p == Point::scores || p == Point::pattern ? fmt::format("{}, positions", heads)
                    : heads > 0 ? fmt::format("{}, {}", heads, c.head_dim)
                                : std::to_string(point_width(c, p, 0)),
                    point_info(p).changes ? "" : "  to look at alone"));
  }
}

// Rows as they come, into one tensor for each point.
class Capture {
 public:
  Capture(const std::string& path, const ModelConfig& c, const std::vector<PointAt>& points,
          int64_t first, int64_t count, const std::map<std::string, std::string>& metadata)
      : config_(c), points_(points), first_(first), positions_(first + count) {
    std::vector<NamedShape> shapes;
    for (const PointAt& at : points) {
      std::vector<int64_t> shape = {count};
      const int64_t heads = point_heads(c, at.point);
      if (heads > 0) shape.push_back(heads);
      shape.push_back(heads > 0 ? width(at) / heads : width(at));
      shapes.push_back({point_name(at), DType::f32, shape});
    }
    shapes.push_back({"input_ids", DType::i32, {positions_}});
    file_ = make_tensor_file(path, shapes, metadata);
  }

  void operator()(const PointAt& at, int64_t first, Rows rows) {
    const auto index =
        static_cast<size_t>(std::find(points_.begin(), points_.end(), at) - points_.begin());
    const auto full = static_cast<size_t>(width(at));
    const size_t heads = std::max<size_t>(1, static_cast<size_t>(point_heads(config_, at.point)));
    // What has a column for each position has those that come later as it has what is not seen.
    buffer_.assign(rows.count * full,
                   at.point == Point::scores ? -std::numeric_limits<float>::infinity() : 0.0f);
    const size_t from = rows.width / heads, to = full / heads;
    for (size_t r = 0; r < rows.count; ++r) {
      for (size_t h = 0; h < heads; ++h)
        std::copy_n(rows.row(r) + h * from, from, buffer_.data() + r * full + h * to);
    }
    file_->write(index, static_cast<size_t>(first - first_) * full,
                 std::as_bytes(std::span(buffer_)));
  }
  void finish(const std::vector<int32_t>& ids) {
    file_->write(points_.size(), 0, std::as_bytes(std::span(ids)));
    file_->commit();
  }

 private:
  int64_t width(const PointAt& at) const { return point_width(config_, at.point, positions_); }

  const ModelConfig& config_;
  const std::vector<PointAt>& points_;
  int64_t first_, positions_;
  std::unique_ptr<TensorFile> file_;
  std::vector<float> buffer_;
};

void run(CaptureCommand& o) {
  LabWork work = begin(o.lab);
  Session& session = work.session;
  const ModelConfig& c = session.model().config();
  if (o.list) return list_points(c);
  const std::vector<PointAt> points = match_points(o.points, c);
  const auto prompt = static_cast<int64_t>(work.ids.size()), first = session.size();
  if (prompt + o.generate == 0) usage_error("capture", "a prompt, or -n with --from", "neither");
  if (prompt + o.generate > session.capacity() - first)
    throw Error(ErrorKind::capacity, "", "tokens",
                fmt::format("at most {} positions (--ctx)", session.capacity()),
                fmt::format("{} + {}", first, prompt + o.generate));
  Capture capture(o.output, c, points, first, prompt + o.generate,
                  {{"contract", contract_name(session.model(), session.compute().contract)},
                   {"model", session.model().fingerprint()},
                   {"first_position", std::to_string(first)}});
  const Watch watch{points, std::ref(capture)};
  session.append(work.ids, nullptr, nullptr, nullptr, &watch);
  GenerateOptions options;
  options.max_tokens = o.generate;
  options.ignore_eos = true;
  if (o.generate > 0) {
    Generator reply(session, work.tokenizer.get(), options);
    while (const auto id = reply.draw()) {
      session.append({&*id, 1}, nullptr, nullptr, nullptr, &watch);
      reply.processed(*id);
    }
  }
  capture.finish(session.tokens());
  say("{} points of positions {} .. {} in {}\n", points.size(), first, session.size() - 1,
      printable(o.output));
}

}  // namespace

void add_capture(CLI::App& app) {
  const auto o = std::make_shared<CaptureCommand>();
  CLI::App* sub = app.add_subcommand(
      "capture", "Activations at points of the forward pass, as safetensors or .npy.");
  CLI::Option* points =
      sub->add_option("--points", o->points,
                      "names, * for any: 'blocks.*.hook_resid_post,blocks.3.attn.hook_pattern'")
          ->type_name("NAMES");
  sub->add_option("-o,--output", o->output, "a .safetensors file, or DIR/ for .npy files")
      ->type_name("FILE")
      ->check(named())
      ->group("Output");
  sub->add_option("-n,--max-tokens", o->generate, "tokens that are drawn behind the prompt")
      ->type_name("N")
      ->check(integer(0, kMaxPositions));
  sub->add_flag("--list", o->list, "the points of this model");
  o->lab.add_to(*sub);
  sub->callback([o, points] {
    if (!o->list && (points->count() == 0 || o->output.empty()))
      throw CLI::RequiredError("--points and -o, or --list");
    run(*o);
  });
}

}  // namespace stet::tool
