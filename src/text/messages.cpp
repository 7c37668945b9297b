#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "stet/chat/conversation.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;

// Adds further fields to a message; they may replace role and content. Appends the others without
// searching for equal names, as update() would: their names are distinct.
void add_fields(Json& message, Json fields) {
  auto& members = message.get_ref<Json::object_t&>();
  for (auto& [name, value] : fields.get_ref<Json::object_t&>()) {
    if (name == "role" || name == "content")
      message[name] = std::move(value);
    else
      members.emplace_back(name, std::move(value));
  }
}

// Throws an argument Error for a part of message `index` that is not text of its kind.
void require(bool holds, size_t index, const char* part, const char* expected,
             const std::string& found) {
  if (!holds)
    throw Error(ErrorKind::argument, "", "messages[" + std::to_string(index) + "]." + part,
                expected, found);
}

}  // namespace

jinja::Value template_messages(const std::vector<Message>& messages) {
  Json list = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    require(utf8_valid(m.role), i, "role", "UTF-8", m.role);
    require(utf8_valid(m.content), i, "content", "UTF-8", m.content);
    Json message = {{"role", m.role}, {"content", m.content}};
    if (!m.fields.empty()) {
      Json fields = parse_ordered_json(m.fields, "fields");
      require(fields.is_object(), i, "fields", "a JSON object", m.fields);
      add_fields(message, std::move(fields));
    }
    list.push_back(std::move(message));
  }
  return jinja::Value::from_json(list.dump(), "messages");
}

}  // namespace stet
