// Lets the calling thread's interrupt end work that is not a pass through the model.
#pragma once

namespace stet {

// Throws Interrupted if the calling thread's interrupt (interrupt.hpp) asks for it. Callers call it
// at the start and between pieces of work. Other threads of a team may call it, too: they have no
// interrupt.
void check_interrupt();

}  // namespace stet
