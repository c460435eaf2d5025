/* What the files of `millrace dead-letters` share. */
#ifndef MILLRACE_CLI_DEAD_LETTERS_H
#define MILLRACE_CLI_DEAD_LETTERS_H

#include "cli.h"

/* Prints the letters of mr_letters_list(): one line each. */
mr_error *cli_letters_print(const cli_context *cli, const PGresult *rows) MR_MUST_CHECK;
/* Prints everything about the only row of a whole listing. */
mr_error *cli_letters_show(const cli_context *cli, const PGresult *rows) MR_MUST_CHECK;

#endif
