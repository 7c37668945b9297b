// stet capture: writes activations at points of the forward pass to a file.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "stet/base/error.hpp"
#include "stet/generate/generate.hpp"
#include "tools/lab/lab.hpp"
#include "tools/lab/tensor_file.hpp"

namespace stet::tool {
namespace {

struct CaptureCommand {
  LabOptions lab;
  std::string points, positions, heads, output;
  int64_t generate = 0;
  bool list = false, jsonl = false;
};

void list_points(const ModelConfig& c) {
  for (int i = 0; i < kPoints; ++i) {
    const auto p = static_cast<Point>(i);
    if (!has_point(c, p)) continue;
    PointAt at{p, 0};  // the first layer that has the point
    while (!has_point(c, at)) ++at.layer;
    const int64_t heads = point_heads(c, at);
    const bool changed = is_attention(p) || p == Point::state;
    out(fmt::format("{}{}  [{}]{}\n", point_info(p).of_layer ? "blocks.N." : "", point_info(p).name,
                    is_attention(p) ? fmt::format("{}, positions", heads)
                    : heads > 0     ? fmt::format("{}, {}", heads, point_width(c, at, 0) / heads)
                                    : std::to_string(point_width(c, at, 0)),
                    point_info(p).changes ? ""
                    : changed             ? "  changed by interventions alone"
                                          : "  read only"));
  }
}

// The rows and columns to write.
struct Selection {
  std::vector<PointAt> points;
  std::vector<int64_t> positions, heads;  // no heads: all columns
};

Selection selection_of(const CaptureCommand& o, const ModelConfig& c, int64_t first, int64_t end) {
  Selection s{
      match_points(o.points, c), parse_positions(o.positions, "--positions", first, end), {}};
  if (o.positions.empty()) {
    for (const PointAt& at : s.points) {
      if (at.point == Point::state)
        usage_error(fmt::format("{} needs --positions: each has {} numbers", point_name(at),
                                point_width(c, at, 0)));
    }
  }
  if (o.heads.empty()) return s;
  s.heads = parse_list(o.heads, "--heads");
  if (s.heads.empty()) usage_error("--heads", "at least one head", o.heads);
  const int64_t most = *std::max_element(s.heads.begin(), s.heads.end());
  for (const PointAt& at : s.points) {
    const int64_t heads = point_heads(c, at);
    if (heads == 0)
      usage_error("--heads is for points with heads, and " + point_name(at) + " has none");
    if (most >= heads)
      usage_error("--heads", fmt::format("heads of {}, which has {}", point_name(at), heads),
                  o.heads);
  }
  return s;
}

// Writes the captured rows, one tensor for each point.
class Capture {
 public:
  // `end` is the final size of the session, which is the width of scores and patterns.
  Capture(const std::string& path, const ModelConfig& c, const Selection& selection, int64_t end,
          const std::map<std::string, std::string>& metadata)
      : config_(c), selection_(selection), end_(end) {
    const auto count = static_cast<int64_t>(selection.positions.size());
    std::vector<NamedShape> shapes;
    for (const PointAt& at : selection.points) {
      std::vector<int64_t> shape = {count};
      if (point_heads(c, at) > 0) shape.push_back(static_cast<int64_t>(heads_of(at)));
      shape.push_back(static_cast<int64_t>(width_of(at)));
      shapes.push_back({point_name(at), DType::f32, shape});
    }
    shapes.push_back({"input_ids", DType::i32, {end}});
    shapes.push_back({"positions", DType::i32, {count}});
    file_ = make_tensor_file(path, shapes, metadata);
  }

  void operator()(const PointAt& at, int64_t first, Rows rows) {
    const std::vector<PointAt>& points = selection_.points;
    const auto index =
        static_cast<size_t>(std::find(points.begin(), points.end(), at) - points.begin());
    const std::vector<int64_t>& kept = selection_.positions;
    const auto begin = std::lower_bound(kept.begin(), kept.end(), first);
    const auto end = std::lower_bound(begin, kept.end(), first + static_cast<int64_t>(rows.count));
    const size_t heads = heads_of(at), width = width_of(at), row = heads * width;
    // Later positions get the value of positions that are not visible.
    buffer_.assign(static_cast<size_t>(end - begin) * row,
                   at.point == Point::scores ? -std::numeric_limits<float>::infinity() : 0.0f);
    const size_t from =
        rows.width / std::max<size_t>(1, static_cast<size_t>(point_heads(config_, at)));
    float* to = buffer_.data();
    for (auto p = begin; p != end; ++p) {
      const float* const x = rows.row(static_cast<size_t>(*p - first));
      for (size_t h = 0; h < heads; ++h, to += width) {
        const size_t head = selection_.heads.empty() ? h : static_cast<size_t>(selection_.heads[h]);
        std::copy_n(x + head * from, from, to);
      }
    }
    file_->write(index, static_cast<size_t>(begin - kept.begin()) * row,
                 std::as_bytes(std::span(buffer_)));
  }
  void finish(const std::vector<int32_t>& ids) {
    const std::vector<int32_t> positions(selection_.positions.begin(), selection_.positions.end());
    file_->write(selection_.points.size(), 0, std::as_bytes(std::span(ids)));
    file_->write(selection_.points.size() + 1, 0, std::as_bytes(std::span(positions)));
    file_->commit();
  }

 private:
  size_t heads_of(const PointAt& at) const {
    if (!selection_.heads.empty()) return selection_.heads.size();
    return std::max<size_t>(1, static_cast<size_t>(point_heads(config_, at)));
  }
  size_t width_of(const PointAt& at) const {
    const int64_t heads = std::max<int64_t>(1, point_heads(config_, at));
    return static_cast<size_t>(point_width(config_, at, end_) / heads);
  }

  const ModelConfig& config_;
  const Selection& selection_;
  int64_t end_;
  std::unique_ptr<TensorFile> file_;
  std::vector<float> buffer_;
};

// Processes the prompt and draws tokens. Captures nothing before position `first_kept`.
void process(const CaptureCommand& o, LabWork& work, int64_t first_kept, const Watch& watch) {
  Session& session = work.session;
  const std::span<const int32_t> ids(work.ids);
  const auto before =
      static_cast<size_t>(std::min(first_kept - session.size(), static_cast<int64_t>(ids.size())));
  session.append(ids.first(before));
  session.append(ids.subspan(before), nullptr, nullptr, nullptr, &watch);
  GenerateOptions options;
  options.max_tokens = o.generate;
  options.ignore_eos = true;
  if (o.generate == 0) return;
  Generator reply(session, work.tokenizer.get(), options);
  while (const auto id = reply.draw()) {
    session.append({&*id, 1}, nullptr, nullptr, nullptr, &watch);
    reply.processed(*id);
  }
}

// Captures the tokens of `work` into one file or directory. Returns the rows and columns written.
Selection capture(const CaptureCommand& o, LabWork& work, const std::string& output) {
  const Session& session = work.session;
  const ModelConfig& c = session.model().config();
  const auto prompt = static_cast<int64_t>(work.ids.size()), first = session.size();
  if (prompt + o.generate == 0) usage_error("capture needs a prompt, or -n with --from");
  if (prompt + o.generate > session.capacity() - first)
    throw std::runtime_error(does_not_fit(prompt + o.generate, first, session.capacity()));
  const int64_t end = first + prompt + o.generate;
  Selection selection = selection_of(o, c, first, end);
  end_on_signals([&] {
    Capture capture(output, c, selection, end,
                    {{"contract", contract_name(session.model(), session.compute().contract)},
                     {"model", session.model().fingerprint()},
                     {"first_position", std::to_string(selection.positions.front())}});
    process(o, work, selection.positions.front(),
            {selection.points, std::ref(capture), selection.positions});
    capture.finish(session.tokens());
  });
  return selection;
}

// Writes a file for each line, named by its number, in the directory of -o.
void run_lines(CaptureCommand& o) {
  if (!o.output.ends_with('/')) usage_error("--jsonl needs -o DIR/, a directory");
  std::error_code error;
  std::filesystem::create_directories(o.output, error);
  if (error) throw Error(ErrorKind::io, o.output, "", "a directory", error.message());
  size_t number = 0;
  each_lab_line(o.lab, [&](LabLine& line) {
    const std::string path = fmt::format("{}{}.safetensors", o.output, ++number);
    const Selection kept = capture(o, line.work, path);
    Json j = Json::object();
    if (!line.id.is_null()) j["id"] = line.id;
    j["file"] = path;
    j["points"] = Json::array();
    for (const PointAt& at : kept.points) j["points"].push_back(point_name(at));
    j["positions"] = kept.positions;
    out(dump(j) + "\n");
  });
}

void run(CaptureCommand& o) {
  if (o.jsonl) return run_lines(o);
  LabWork work = begin(o.lab);
  if (o.list) return list_points(work.session.model().config());
  const Selection selection = capture(o, work, o.output);
  say("{} points of {} positions, {} .. {}, in {}\n", selection.points.size(),
      selection.positions.size(), selection.positions.front(), selection.positions.back(),
      printable(o.output));
}

}  // namespace

void add_capture(Command& app) {
  const auto o = std::make_shared<CaptureCommand>();
  Command* sub = app.add_subcommand(
      "capture", "Write activations at points of the forward pass as safetensors or .npy.");
  Option* points =
      sub->add_option(
             "--points", o->points,
             "names of points, * for any: 'blocks.*.hook_resid_post,blocks.3.attn.hook_pattern'")
          ->type_name("NAMES");
  sub->add_option("--positions", o->positions, "positions to write: 3..9,12 (default: all)")
      ->type_name("LIST");
  sub->add_option("--heads", o->heads,
                  "heads to write, for points that have heads: 0,2 (default: all)")
      ->type_name("LIST");
  sub->add_option("-o,--output", o->output, "a .safetensors file, or DIR/ for .npy files")
      ->type_name("FILE")
      ->group("Output");
  sub->add_option("-n,--max-tokens", o->generate, "tokens to draw after the prompt")
      ->type_name("N")
      ->check(integer(0, kMaxPositions));
  sub->add_flag(
         "--jsonl", o->jsonl,
         "an object per line of standard input: {\"prompt\"}, {\"ids\"} or {\"say\"}; of line "
         "N, -o DIR/ gets N.safetensors, and a line says so")
      ->group("Output");
  sub->add_flag("--list", o->list, "list the points of this model");
  o->lab.add_to(*sub);
  const Command* command = sub;
  sub->callback([o, points, command] {
    for (const char* given :
         {"--points", "--output", "--heads", "--positions", "--max-tokens", "--jsonl", "--prompt",
          "--prompt-file", "--ids", "--ids-file", "--say", "--intervene"}) {
      if (o->list && command->count(given) > 0)
        usage_error(fmt::format("--list excludes {}", given));
    }
    if (!o->list && (points->count() == 0 || o->output.empty()))
      required_error("--points and -o, or --list");
    run(*o);
  });
}

}  // namespace stet::tool
