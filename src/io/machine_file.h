#pragma once
// defines: save_machine, load_machine — machine profiles as YAML.

#include <string>

#include "schedule/machine.h"

namespace megatrain {

std::string machine_yaml(const MachineProfile& profile);
/// What a file leaves out is taken from the built-in profile of its device. Throws Error for unknown keys,
/// wrong types and rates that are not positive, by file and line.
MachineProfile load_machine(const std::string& path);
/// Where `doctor` writes and every command looks: $MEGATRAIN_MACHINE, else ~/.config/megatrain/machine.yaml.
std::string machine_path();

}  // namespace megatrain
