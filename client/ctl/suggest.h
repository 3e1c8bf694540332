// Words that agmmctl does not know, and the verbs that were perhaps meant. Pure.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace agmm {

// After a parse of `app` that failed: one line that names the wrong or missing verb and the nearest
// ones. Empty where the verb is not what was wrong.
std::string VerbMistake(const CLI::App& app);

// Single letters to insert, remove or replace to make one of the other.
int EditDistance(const std::string& a, const std::string& b);

}  // namespace agmm
