# Fails unless README contains EXAMPLE verbatim.
file(READ ${README} readme)
file(READ ${EXAMPLE} example)
string(FIND "${readme}" "${example}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "${README}: expected the text of ${EXAMPLE}, found another or none")
endif()
