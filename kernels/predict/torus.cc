#include "kernels/predict/torus.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status.h"
#include "kernels/schedule/scanner.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// The physical axes of each mesh axis, major first.
using AxisMap = std::vector<std::vector<int>>;

int FindAxis(const Mesh& mesh, absl::string_view name) {
  for (size_t i = 0; i < mesh.axes.size(); ++i)
    if (mesh.axes[i].name == name) return static_cast<int>(i);
  return -1;
}

// The axes of the torus, as a mesh, because both have the same notation.
absl::StatusOr<Mesh> PhysicalAxes(const Mesh& mesh, const std::string& text) {
  if (text.empty()) return mesh;
  auto physical = ParseMesh(text);
  if (physical.ok()) return physical;
  // Names what was given, and an example of it, in the place of a mesh.
  return absl::InvalidArgumentError(absl::StrReplaceAll(
      physical.status().message(),
      {{"mesh column", "physical axes: column"}, {"an axis such as x=8", "axes such as a=4,b=4"}}));
}

// Returns by axis whether it wraps around.
absl::StatusOr<std::vector<bool>> ParseWrap(const Mesh& physical, const std::string& text,
                                            int multiple) {
  std::vector<bool> wraps(physical.axes.size());
  if (text.empty()) {
    for (size_t i = 0; i < physical.axes.size(); ++i)
      wraps[i] = multiple > 0 && physical.axes[i].size % multiple == 0;
    return wraps;
  }
  if (text == "none" && FindAxis(physical, text) < 0) return wraps;
  Scanner scanner("wrap", text);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  do {
    AGMM_ASSIGN_OR_RETURN(const Token name, scanner.Name("a physical axis, or none"));
    const int axis = FindAxis(physical, name.text);
    if (axis < 0) {
      return scanner.ErrorAt(
          name.at, absl::StrFormat("%s is not a physical axis; name some of %s, or write none",
                                   name.text, physical.ToString()));
    }
    if (wraps[axis]) {
      return scanner.ErrorAt(name.at,
                             absl::StrFormat("axis %s is named twice; name each once", name.text));
    }
    wraps[axis] = true;
  } while (scanner.Consume(","));
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  return wraps;
}

// Reads the physical axes of one mesh axis, "ab". `used`: by physical axis.
absl::StatusOr<std::vector<int>> ParsePlace(Scanner& scanner, const Mesh& physical,
                                            std::vector<bool>* used) {
  AGMM_ASSIGN_OR_RETURN(const Token word, scanner.Name("physical axes such as ab"));
  std::vector<int> place;
  if (const int bad = ResolveAxes(physical, word.text, &place); bad >= 0) {
    return scanner.ErrorAt(word.at + bad,
                           absl::StrFormat("\"%s\" begins with no physical axis; use those of %s",
                                           word.text.substr(bad), physical.ToString()));
  }
  size_t at = word.at;
  for (const int axis : place) {
    const std::string& name = physical.axes[axis].name;
    if ((*used)[axis]) {
      return scanner.ErrorAt(
          at, absl::StrFormat("physical axis %s is used twice; use each once", name));
    }
    (*used)[axis] = true;
    at += name.size();
  }
  return place;
}

absl::StatusOr<AxisMap> ParseMap(const Mesh& mesh, const Mesh& physical, const std::string& text) {
  Scanner scanner("map", text);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  AxisMap map(mesh.axes.size());
  std::vector<bool> used(physical.axes.size());
  do {
    AGMM_ASSIGN_OR_RETURN(const Token name, scanner.Name("a mesh axis such as x=ab"));
    const int axis = FindAxis(mesh, name.text);
    if (axis < 0) {
      return scanner.ErrorAt(name.at, absl::StrFormat("%s is not an axis of mesh %s; place those",
                                                      name.text, mesh.ToString()));
    }
    if (!map[axis].empty()) {
      return scanner.ErrorAt(
          name.at, absl::StrFormat("axis %s is placed twice; place each once", name.text));
    }
    AGMM_RETURN_IF_ERROR(scanner.Expect("="));
    AGMM_ASSIGN_OR_RETURN(map[axis], ParsePlace(scanner, physical, &used));
  } while (scanner.Consume(","));
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  return map;
}

// Gives each mesh axis the next physical axes, until their sizes make up its own.
AxisMap MapInOrder(const Mesh& mesh, const Mesh& physical) {
  AxisMap map(mesh.axes.size());
  size_t next = 0;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    int64_t size = 1;
    while (size < mesh.axes[i].size && next < physical.axes.size()) {
      size *= physical.axes[next].size;
      map[i].push_back(static_cast<int>(next++));
    }
  }
  return map;
}

// Checks that each mesh axis is as large as its physical axes, and that all axes are placed.
absl::Status CheckMap(const Mesh& mesh, const Mesh& physical, const AxisMap& map) {
  std::vector<bool> used(physical.axes.size());
  for (size_t i = 0; i < map.size(); ++i) {
    int64_t size = 1;
    std::string names;
    for (const int axis : map[i]) {
      used[axis] = true;
      size *= physical.axes[axis].size;
      absl::StrAppend(&names, names.empty() ? "" : ",", physical.axes[axis].name);
    }
    if (size == mesh.axes[i].size) continue;
    if (map[i].empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "mesh axis %s=%d has no physical axis of %s; give a map, such as x=ab,y=c, "
          "that places every axis",
          mesh.axes[i].name, mesh.axes[i].size, physical.ToString()));
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "mesh axis %s=%d is placed on physical axes %s of %s, whose sizes multiply to %d; give a "
        "map, such as x=ab,y=c, in which both are equal",
        mesh.axes[i].name, mesh.axes[i].size, names, physical.ToString(), size));
  }
  for (size_t i = 0; i < physical.axes.size(); ++i) {
    if (used[i] || physical.axes[i].size == 1) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "physical axis %s=%d holds no axis of mesh %s; leave it out, or place a mesh axis on it",
        physical.axes[i].name, physical.axes[i].size, mesh.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Torus> MakeTorus(const Mesh& mesh, const Machine& machine, const TorusText& text) {
  AGMM_RETURN_IF_ERROR(Validate(mesh));
  AGMM_ASSIGN_OR_RETURN(const Mesh physical, PhysicalAxes(mesh, text.physical));
  AGMM_ASSIGN_OR_RETURN(const std::vector<bool> wraps,
                        ParseWrap(physical, text.wrap, machine.wrap_multiple));
  AxisMap map = MapInOrder(mesh, physical);
  if (!text.map.empty()) {
    AGMM_ASSIGN_OR_RETURN(map, ParseMap(mesh, physical, text.map));
  }
  AGMM_RETURN_IF_ERROR(CheckMap(mesh, physical, map));

  Torus torus;
  for (size_t i = 0; i < physical.axes.size(); ++i)
    torus.axes.push_back(
        {physical.axes[i].name, physical.axes[i].size, wraps[i] && physical.axes[i].size > 2});
  torus.coordinates.assign(mesh.size(), std::vector<int>(physical.axes.size()));
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    for (size_t i = 0; i < map.size(); ++i) {
      int rest = mesh.Coordinate(rank, static_cast<int>(i));
      for (auto axis = map[i].rbegin(); axis != map[i].rend(); ++axis) {
        torus.coordinates[rank][*axis] = rest % physical.axes[*axis].size;
        rest /= physical.axes[*axis].size;
      }
    }
  }
  return torus;
}

}  // namespace agmm
