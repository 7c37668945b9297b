// --intervene FILE: interventions as a person writes them (docs/lab.md has the format).
#pragma once

#include <string>
#include <vector>

#include "stet/session/session.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

struct InterventionOption {
  std::string file;

  void add_to(Command& app);
  // Attaches those of the file, if one was named, to a session.
  void attach_to(Session& session) const;
};

// Those of a file, for models of this kind. Throws a format Error that names the entry.
std::vector<Intervention> read_interventions(const std::string& path, const ModelConfig& config);

// Points of a comma-separated list; * stands for any run of characters. Throws an argument Error
// for an entry that no point of the model fits.
std::vector<PointAt> match_points(const std::string& patterns, const ModelConfig& config);

}  // namespace stet::tool
