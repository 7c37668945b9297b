// --intervene FILE: reads interventions from JSON (format in docs/lab.md).
#pragma once

#include <string>
#include <vector>

#include "stet/session/session.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

struct InterventionOption {
  std::string file;

  void add_to(Command& app);
  // Attaches the file's interventions to a session. Does nothing without a file.
  void attach_to(Session& session) const;
};

// Reads interventions for models of this kind. Throws a format Error that names the entry.
std::vector<Intervention> read_interventions(const std::string& path, const ModelConfig& config);

// Returns the points of a comma-separated list; * matches any characters. Throws an argument Error
// for an entry that matches no point of the model.
std::vector<PointAt> match_points(const std::string& patterns, const ModelConfig& config);

}  // namespace stet::tool
