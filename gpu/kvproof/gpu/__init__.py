"""The copy path will live here: segment tables, CPU and Triton back ends, fences. Nothing is implemented yet."""
