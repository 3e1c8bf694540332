// The memory that headers (HPACK, RFC 7541) take in gRPC, which does not bound it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace agmm {

// The most memory that gRPC holds for a field, besides its name and its value. A field may be one
// byte as sent ("indexed").
inline constexpr int64_t kFieldBytes = 256;

// Bounds the memory of the header blocks of one connection, which arrive in parts. Decodes nothing:
// it follows gRPC's parser only to find the beginnings of fields and the lengths of names and
// values.
class HeaderSize {
 public:
  // Returns the most that gRPC holds for `part`. A change of the table's size counts as a field.
  int64_t Read(absl::string_view part);
  // Returns true unless the last field lacks bytes. gRPC may read a block that ends within a field
  // together with the next one.
  bool complete() const { return next_ == Next::kField; }

 private:
  enum class Next { kField, kIndex, kNameLength, kName, kValueLength, kValue };
  enum class Kind { kIndexed, kResize, kLiteral, kAdded };  // kAdded: a literal for the table

  // An integer (5.1). gRPC takes any number of bytes that add nothing to it.
  class Integer {
   public:
    // `most`: what the first byte can hold. These return true once the integer is complete.
    bool Begin(unsigned char byte, unsigned most);
    bool Continue(unsigned char byte);
    uint64_t value() const { return value_; }

   private:
    uint64_t value_ = 0;
    int shift_ = 0;  // of the next byte
  };

  // Each returns the bytes that the field takes besides those as sent.
  int64_t OnField(unsigned char byte);
  int64_t OnIndex();
  int64_t OnLength(unsigned char byte);

  Next next_ = Next::kField;
  Kind kind_ = Kind::kIndexed;
  Integer integer_;       // an index, or the length of a name or value
  bool begun_ = false;    // the length's integer has begun
  bool huffman_ = false;  // the name or value is encoded
  uint64_t left_ = 0;     // of the name or value
  int64_t entry_ = 0;     // bytes of the literal's name and value
  // Bytes of the largest entry that the connection's table has had. gRPC copies the name of an
  // entry, and for some names the value, for each field that refers to it.
  int64_t largest_ = 0;
};

}  // namespace agmm
