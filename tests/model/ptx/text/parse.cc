// Modules: their directives, their variables, and the heads of their kernels.
#include <memory>
#include <string>
#include <string_view>

#include "tests/model/ptx/program/program.h"
#include "tests/model/ptx/text/body.h"
#include "tests/model/ptx/text/scanner.h"
#include "tests/model/ptx/text/variables.h"

namespace ptx {
namespace {

class ModuleParser {
 public:
  explicit ModuleParser(std::string_view text) : scanner_(text) {}
  std::unique_ptr<Module> Parse();

 private:
  void ParseDirective(std::string_view directive);
  void ParseFile();
  void ParseTarget();
  // Takes a linkage and .entry, .func or a variable.
  void ParseDefinition();
  void ParseKernel();
  void ParseParameter(Kernel& kernel);
  // Takes .maxntid and the like.
  void ParseLimit(Kernel& kernel);
  // Takes up to three sizes; a size that is not there is 1.
  void ParseSizes(uint32_t (&sizes)[3]);
  uint32_t ParseThreads();
  void AddVariables();

  Scanner scanner_;
  std::unique_ptr<Module> module_ = std::make_unique<Module>();
  ModuleVariables variables_;
  bool explicit_cluster_ = false;  // of the kernel
};

std::unique_ptr<Module> ModuleParser::Parse() {
  for (;;) {
    scanner_.Begin();
    const char next = scanner_.Peek();
    if (next == '\0') break;
    if (scanner_.Take(';')) continue;
    if (next != '.') scanner_.Fail("expected a PTX directive");
    ParseDirective(scanner_.PeekDirective());
  }
  if (module_->target.empty()) scanner_.Fail("the text has no .target");
  return std::move(module_);
}

void ModuleParser::ParseDirective(std::string_view directive) {
  if (directive == "entry" || directive == "func" || BeginsVariable(directive)) {
    ParseDefinition();
    return;
  }
  scanner_.TakeDirective();
  if (directive == "version") {
    scanner_.TakeWord();
  } else if (directive == "target") {
    ParseTarget();
  } else if (directive == "address_size") {
    if (scanner_.ExpectCount() != 64) scanner_.Fail("the model knows addresses of 64 bits only");
  } else if (directive == "file") {
    ParseFile();
  } else if (directive == "section") {
    // Debug information.
    scanner_.TakeDirective();
    scanner_.SkipBlock();
  } else if (directive == "pragma") {
    scanner_.ExpectString();
    scanner_.Expect(';');
  } else {
    scanner_.Fail("the model does not know ." + std::string(directive) + " in a module");
  }
}

void ModuleParser::ParseTarget() {
  module_->target = scanner_.ExpectName();
  while (scanner_.Take(',')) {
    const std::string_view option = scanner_.ExpectName();
    if (option != "debug") scanner_.Fail("the model does not know this option of .target");
  }
}

void ModuleParser::ParseFile() {
  const uint32_t number = scanner_.ExpectCount();
  if (number > 100000) scanner_.Fail("a file's number is larger than the model's 100000");
  std::string name(scanner_.ExpectString());
  // A folder and a name.
  if (scanner_.Peek() == '"') name += "/" + std::string(scanner_.ExpectString());
  while (scanner_.Take(',')) scanner_.ExpectNumber();  // time and size
  if (module_->files.size() <= number) module_->files.resize(number + 1);
  module_->files[number] = std::move(name);
}

void ModuleParser::ParseDefinition() {
  // The linkage is read twice, because a variable's head has it as well.
  Scanner ahead = scanner_;
  std::string_view directive = ahead.TakeDirective();
  while (directive == "visible" || directive == "weak" || directive == "extern") {
    directive = ahead.TakeDirective();
  }
  if (directive == "entry") {
    scanner_ = ahead;
    ParseKernel();
  } else if (directive == "func") {
    scanner_.Fail("the model does not have .func");
  } else {
    AddVariables();
  }
}

void ModuleParser::AddVariables() {
  for (Variable& variable : ParseVariables(scanner_, *module_)) {
    if (variable.symbol.space == Space::kLocal) {
      scanner_.Fail("the model does not have local memory of a module");
    }
    const std::string_view name = variable.name;
    if (!variables_.emplace(name, std::move(variable)).second) {
      scanner_.Fail(Quoted(name) + " is declared twice");
    }
  }
}

void ModuleParser::ParseKernel() {
  auto kernel = std::make_unique<Kernel>();
  const std::string name(scanner_.ExpectName());
  kernel->name = name;
  scanner_.set_kernel(name);
  explicit_cluster_ = false;
  if (scanner_.Take('(') && !scanner_.Take(')')) {
    do {
      ParseParameter(*kernel);
    } while (scanner_.Take(','));
    scanner_.Expect(')');
  }
  while (scanner_.Peek() == '.') ParseLimit(*kernel);
  const bool has_body = scanner_.Peek() == '{';
  if (!has_body) {
    scanner_.Expect(';');  // a declaration
  } else {
    if (explicit_cluster_ && kernel->cluster[0] == 0) {
      scanner_.Fail("the model does not have .explicitcluster without .reqnctapercluster");
    }
    if (module_->kernels.contains(name)) scanner_.Fail("a kernel is defined twice");
    Body(scanner_, *module_, variables_, *kernel).Parse();
    module_->kernels[name] = std::move(kernel);
  }
  scanner_.set_kernel("");
}

void ModuleParser::ParseParameter(Kernel& kernel) {
  scanner_.Begin();
  if (scanner_.TakeDirective() != "param") scanner_.Fail("a parameter does not begin with .param");
  Symbol parameter{.space = Space::kParam};
  Type type = Type::kNone;
  uint64_t alignment = 0;
  bool pointer = false;  // attributes of the memory that a pointer points to follow
  while (scanner_.Peek() == '.') {
    const std::string_view word = scanner_.TakeDirective();
    if (word == "align") {
      const uint64_t given = ExpectAlignment(scanner_);
      if (!pointer) alignment = given;
    } else if (word == "ptr") {
      pointer = true;
    } else if (pointer &&
               (word == "global" || word == "shared" || word == "const" || word == "local")) {
      continue;
    } else if (!pointer && Bytes(TypeNamed(word)) > 0) {
      type = TypeNamed(word);
    } else {
      scanner_.Fail("the model does not know ." + std::string(word) + " of a parameter");
    }
  }
  if (type == Type::kNone) scanner_.Fail("a parameter has no type");
  parameter.name = scanner_.ExpectName();
  parameter.bytes = TakeDimensions(scanner_) * Bytes(type);
  if (parameter.bytes == 0) scanner_.Fail("a parameter has no size");
  if (alignment == 0) alignment = Bytes(type);
  parameter.address = AlignUp(kernel.parameter_bytes, alignment);
  constexpr uint64_t kMost = 32764;  // of the ISA
  if (parameter.address + parameter.bytes > kMost) {
    scanner_.Fail("the parameters have more than 32764 bytes");
  }
  kernel.parameter_bytes = static_cast<uint32_t>(parameter.address + parameter.bytes);
  kernel.parameters.push_back(std::move(parameter));
}

void ModuleParser::ParseSizes(uint32_t (&sizes)[3]) {
  int count = 0;
  do {
    if (count == 3) scanner_.Fail("there are more than three sizes");
    sizes[count] = scanner_.ExpectCount();
    if (sizes[count++] == 0) scanner_.Fail("a size is 0");
  } while (scanner_.Take(','));
  for (; count < 3; ++count) sizes[count] = 1;
}

uint32_t ModuleParser::ParseThreads() {
  uint32_t sizes[3];
  ParseSizes(sizes);
  const uint64_t plane = uint64_t{sizes[0]} * sizes[1];
  if (plane > 1024 || plane * sizes[2] > 1024) scanner_.Fail("a CTA has more than 1024 threads");
  return static_cast<uint32_t>(plane * sizes[2]);
}

void ModuleParser::ParseLimit(Kernel& kernel) {
  scanner_.Begin();
  const std::string_view directive = scanner_.TakeDirective();
  if (directive == "maxntid") {
    kernel.max_threads = ParseThreads();
  } else if (directive == "reqntid") {
    kernel.required_threads = ParseThreads();
  } else if (directive == "maxnreg") {
    kernel.max_registers = scanner_.ExpectCount();
  } else if (directive == "reqnctapercluster") {
    ParseSizes(kernel.cluster);
  } else if (directive == "explicitcluster") {
    explicit_cluster_ = true;
  } else if (directive == "minnctapersm" || directive == "maxnctapersm") {
    scanner_.ExpectCount();  // a hint for the allocation of registers
  } else if (directive == "pragma") {
    do {
      scanner_.ExpectString();
    } while (scanner_.Take(','));
    scanner_.Expect(';');
  } else {
    scanner_.Fail("the model does not know ." + std::string(directive) + " of a kernel");
  }
}

}  // namespace

std::unique_ptr<Module> ParseModule(std::string_view text) {
  // A text in a binary ends with a zero.
  return ModuleParser(text.substr(0, text.find('\0'))).Parse();
}

}  // namespace ptx
