//! Examples of Campanile; each file is one program.
