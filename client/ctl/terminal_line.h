// One line on the terminal that is drawn over; nothing where stderr is no terminal.
#pragma once

#include <string>

namespace agmm {

// Thread-compatible.
class TerminalLine {
 public:
  TerminalLine();
  // Wipes the line.
  ~TerminalLine();
  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  bool terminal() const { return terminal_; }
  // Cut to the terminal's width.
  void Draw(std::string text);
  void Wipe();

 private:
  const bool terminal_;
  bool visible_ = false;
};

}  // namespace agmm
