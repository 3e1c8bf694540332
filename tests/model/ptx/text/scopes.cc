#include "tests/model/ptx/text/scopes.h"

#include <charconv>

namespace ptx {

void Scopes::Open() {
  scopes_.push_back({current_, {}, {}});
  current_ = static_cast<int>(scopes_.size()) - 1;
}

bool Scopes::Close() {
  if (current_ == 0) return false;
  current_ = scopes_[current_].parent;
  return true;
}

bool Scopes::Add(std::string_view name, const Named& named) {
  Scope& scope = scopes_[current_];
  if (FindInRanges(scope, name).kind != Named::kNothing) return false;
  return scope.names.emplace(name, named).second;
}

bool Scopes::AddRange(std::string_view base, uint32_t count, const Named& first) {
  Scope& scope = scopes_[current_];
  for (const Range& range : scope.ranges) {
    if (range.base == base) return false;
  }
  scope.ranges.push_back({base, count, first});
  return true;
}

Named Scopes::FindInRanges(const Scope& scope, std::string_view name) {
  if (scope.ranges.empty() || name.empty() || name.back() < '0' || name.back() > '9') return {};
  for (const Range& range : scope.ranges) {
    if (!name.starts_with(range.base) || name.size() == range.base.size()) continue;
    const std::string_view digits = name.substr(range.base.size());
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
    if (error != std::errc() || end != digits.end() || number >= range.count) continue;
    if (digits[0] == '0' && digits.size() > 1) continue;  // %r<5> has no %r01
    Named named = range.first;
    named.index += number;
    return named;
  }
  return {};
}

Named Scopes::Find(std::string_view name) const {
  for (int scope = current_; scope >= 0; scope = scopes_[scope].parent) {
    const auto found = scopes_[scope].names.find(name);
    if (found != scopes_[scope].names.end()) return found->second;
    const Named named = FindInRanges(scopes_[scope], name);
    if (named.kind != Named::kNothing) return named;
  }
  return {};
}

Named Scopes::FindLabel(std::string_view name, int scope) const {
  for (; scope >= 0; scope = scopes_[scope].parent) {
    const auto found = scopes_[scope].names.find(name);
    if (found != scopes_[scope].names.end() && found->second.kind == Named::kLabel) {
      return found->second;
    }
  }
  return {};
}

}  // namespace ptx
