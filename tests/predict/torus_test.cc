// The place of a mesh on a torus: axes, wrap-around, coordinates, and texts that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "kernels/predict/torus.h"

namespace agmm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh MeshOf(std::vector<Axis> axes) {
  Mesh mesh{.axes = std::move(axes)};
  int size = 1;
  for (const Axis& axis : mesh.axes) size *= axis.size;
  mesh.ranks.resize(size);
  std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
  return mesh;
}

Torus Placed(const Mesh& mesh, int wrap_multiple, const TorusText& text) {
  const auto torus = MakeTorus(mesh, {.wrap_multiple = wrap_multiple}, text);
  EXPECT_TRUE(torus.ok()) << torus.status();
  return torus.ok() ? *torus : Torus{};
}

std::string Refusal(const Mesh& mesh, const TorusText& text) {
  const auto torus = MakeTorus(mesh, {.wrap_multiple = 4}, text);
  EXPECT_EQ(torus.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(torus.status().message());
}

// "a", "b": the axes that wrap.
std::string Wrapped(const Torus& torus) {
  std::string names;
  for (const TorusAxis& axis : torus.axes)
    if (axis.wraps) names += axis.name;
  return names;
}

TEST(Torus, HasTheAxesOfTheMeshIfNoneAreGiven) {
  const Torus torus = Placed(MeshOf({{"x", 4}, {"y", 3}}), 4, {});
  EXPECT_THAT(torus.axes, ElementsAre(TorusAxis{"x", 4, true}, TorusAxis{"y", 3, false}));
  EXPECT_THAT(torus.coordinates.at(7), ElementsAre(2, 1));
}

TEST(Torus, GivesMeshAxesTheNextPhysicalAxes) {
  // "Sharded Matrices and How to Multiply Them": a mesh {X: 16, Y: 4} on a cube of 4 x 4 x 4.
  const Torus torus = Placed(MeshOf({{"x", 16}, {"y", 4}}), 4, {.physical = "a=4,b=4,c=4"});
  EXPECT_EQ(torus.axes.size(), 3);
  // x = 9 is a = 2, b = 1.
  EXPECT_THAT(torus.coordinates.at(9 * 4 + 3), ElementsAre(2, 1, 3));
}

TEST(Torus, PlacesMeshAxesAsTheMapSays) {
  const TorusText text{.physical = "a=2,b=4,c=3", .map = "y=ca,x=b"};
  const Torus torus = Placed(MeshOf({{"x", 4}, {"y", 6}}), 4, text);
  // y = 5 is c = 2, a = 1, because c is major.
  EXPECT_THAT(torus.coordinates.at(3 * 6 + 5), ElementsAre(1, 3, 2));
  EXPECT_THAT(torus.coordinates.at(1), ElementsAre(1, 0, 0));
}

TEST(Torus, GivesEachRankAPlaceOfItsOwn) {
  for (const char* map : {"", "x=ab,y=c", "x=ca,y=b", "y=b,x=ac"}) {
    const TorusText text{.physical = "a=4,b=4,c=4", .map = map};
    const Torus torus = Placed(MeshOf({{"x", 16}, {"y", 4}}), 4, text);
    const std::set<std::vector<int>> places(torus.coordinates.begin(), torus.coordinates.end());
    EXPECT_EQ(places.size(), 64) << map;
  }
}

TEST(Torus, ReadsNamesOfSeveralLetters) {
  const TorusText text{.physical = "a=2,ab=3,b=5", .map = "x=aba,y=b"};
  const Torus torus = Placed(MeshOf({{"x", 6}, {"y", 5}}), 4, text);
  // The longest name counts: x = 3 is ab = 1, a = 1.
  EXPECT_THAT(torus.coordinates.at(3 * 5 + 4), ElementsAre(1, 1, 4));
}

TEST(Torus, WrapsAxesOfAMultiple) {
  const Mesh mesh = MeshOf({{"x", 8}, {"y", 16}, {"z", 6}});
  EXPECT_EQ(Wrapped(Placed(mesh, 16, {})), "y");
  EXPECT_EQ(Wrapped(Placed(mesh, 4, {})), "xy");
  EXPECT_EQ(Wrapped(Placed(mesh, 2, {})), "xyz");
  EXPECT_EQ(Wrapped(Placed(mesh, 0, {})), "");
}

TEST(Torus, WrapsTheNamedAxes) {
  const Mesh mesh = MeshOf({{"x", 4}, {"y", 4}, {"z", 3}});
  EXPECT_EQ(Wrapped(Placed(mesh, 4, {.wrap = "none"})), "");
  EXPECT_EQ(Wrapped(Placed(mesh, 4, {.wrap = "y, z"})), "yz");
}

TEST(Torus, HasOneLinkBetweenTwoDevices) {
  const Mesh mesh = MeshOf({{"x", 2}, {"y", 1}, {"z", 3}});
  EXPECT_EQ(Wrapped(Placed(mesh, 1, {})), "z");
  EXPECT_EQ(Wrapped(Placed(mesh, 0, {.wrap = "x,y,z"})), "z");
}

TEST(Torus, NeedsNoPlaceForAxesOfOne) {
  const Mesh mesh = MeshOf({{"x", 1}, {"y", 4}});
  EXPECT_THAT(Placed(mesh, 4, {.physical = "a=4,b=1"}).coordinates.at(3), ElementsAre(3, 0));
  EXPECT_THAT(Placed(mesh, 4, {.physical = "a=1,b=4", .map = "y=b"}).coordinates.at(3),
              ElementsAre(0, 3));
}

TEST(Torus, RefusesMapsThatDoNotFit) {
  const Mesh mesh = MeshOf({{"x", 16}, {"y", 4}});
  EXPECT_THAT(Refusal(mesh, {.physical = "a=8,b=8"}),
              HasSubstr("mesh axis x=16 is placed on physical axes a,b of a=8,b=8, whose sizes "
                        "multiply to 64; give a map"));
  EXPECT_THAT(Refusal(mesh, {.physical = "a=4,b=4"}), HasSubstr("mesh axis y=4 has no physical"));
  EXPECT_THAT(Refusal(mesh, {.physical = "a=4,b=4,c=4,d=2"}),
              HasSubstr("physical axis d=2 holds no axis of mesh x=16,y=4; leave it out"));
  EXPECT_THAT(Refusal(mesh, {.physical = "a=4,b=4,c=4", .map = "x=ab"}),
              HasSubstr("mesh axis y=4 has no physical"));
  EXPECT_THAT(Refusal(mesh, {.physical = "a=4,b=4,c=4", .map = "x=a,y=bc"}),
              HasSubstr("mesh axis x=16 is placed on physical axes a"));
}

TEST(Torus, PointsAtTheNamesThatItRefuses) {
  const Mesh mesh = MeshOf({{"x", 16}, {"y", 4}});
  const std::string cube = "a=4,b=4,c=4";
  EXPECT_THAT(Refusal(mesh, {.physical = cube, .map = "x=ab,y=q"}),
              HasSubstr("map column 8: \"q\" begins with no physical axis; use those of a=4,b=4"));
  EXPECT_THAT(Refusal(mesh, {.physical = cube, .map = "x=ab,y=b"}),
              HasSubstr("map column 8: physical axis b is used twice"));
  EXPECT_THAT(Refusal(mesh, {.physical = cube, .map = "x=ab,x=c"}),
              HasSubstr("map column 6: axis x is placed twice"));
  EXPECT_THAT(Refusal(mesh, {.physical = cube, .map = "x=ab,z=c"}),
              HasSubstr("map column 6: z is not an axis of mesh x=16,y=4"));
  EXPECT_THAT(Refusal(mesh, {.physical = cube, .map = "x=ab y=c"}), HasSubstr("is left over"));
  EXPECT_THAT(Refusal(mesh, {.physical = cube, .wrap = "a,d"}),
              HasSubstr("wrap column 3: d is not a physical axis; name some of a=4,b=4,c=4"));
  EXPECT_THAT(Refusal(mesh, {.physical = cube, .wrap = "a,a"}),
              HasSubstr("wrap column 3: axis a is named twice"));
  EXPECT_THAT(Refusal(mesh, {.physical = "a=4,a=4"}), HasSubstr("physical axes: column 5"));
  EXPECT_THAT(Refusal(mesh, {.physical = "4x4"}),
              HasSubstr("physical axes: column 1: expected axes such as a=4,b=4, found \"4\""));
}

}  // namespace
}  // namespace agmm::test
