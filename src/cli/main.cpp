#include "cli/commands.h"

int main(int argc, char** argv) {
  return megatrain::run_command_line(argc, argv);
}
