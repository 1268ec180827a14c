#define WIDE_TABLE
