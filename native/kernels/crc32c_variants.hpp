// The ways to compute crc32c; instruction_set.cpp chooses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace legato {

// Eight bytes at a time through tables, on any machine.
uint32_t crc32c_tables(const void* data, size_t num_bytes, uint32_t seed);

// With the machine's own instruction (ARMv8 CRC32, SSE4.2), three streams at a time. Only where the machine
// has it.
uint32_t crc32c_instructions(const void* data, size_t num_bytes, uint32_t seed);

// The same beside carry-less multiplication (ARMv8 PMULL): 1.5 times as fast.
uint32_t crc32c_folding(const void* data, size_t num_bytes, uint32_t seed);

}  // namespace legato
