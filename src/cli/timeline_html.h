#pragma once
// defines: timeline_html — a simulated (or measured) step as one self-contained page.

#include <string>

#include "schedule/timeline.h"

namespace megatrain {

/// One row a lane; tasks coloured by kind, named on hover; the wheel zooms, dragging moves.
std::string timeline_html(const Schedule& schedule, const Timeline& timeline, const std::string& title,
                          const std::string& text);

}  // namespace megatrain
