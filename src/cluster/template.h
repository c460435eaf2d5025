/* Fills the embedded SQL files with the configured names: every identifier comes out quoted. Pure.
 *
 *   {{schema}} {{schema_literal}}   where the functions live; as an identifier, as a string
 *   {{worker_nodes}} …              a table of the control plane by its default name, qualified;
 *                                   {{tablelit:NAME}} as a string
 *   {{events}} {{heads}}            the log's tables, qualified
 *   {{idx:TABLE:SUFFIX}}            idx_<table>_<suffix>, cut to 63 bytes
 *   {{fn:NAME}}                     a control-plane function, qualified; own name for own tables
 *   {{rel:TABLE:SUFFIX}}            a sequence or partition that goes with a table:
 * <table>_<suffix>;
 *                                   {{rellit:TABLE:SUFFIX}} as a string
 *   {{col:C}} {{type:C}}            a log column and its type; {{type_literal:C}} as a string
 *   {{head:X}} {{headtype:X}}       a heads column and its type: type, id, version
 *   {{log_name}} {{fleet}} {{channel}} {{program}}   strings
 *   {{if:F}} … {{end}}, {{unless:F}} … {{end}}   F is a log column that exists, or a flag
 * A line that holds nothing but if, unless or end leaves no line behind. */
#ifndef MR_CLUSTER_TEMPLATE_H
#define MR_CLUSTER_TEMPLATE_H

#include "base/embed.h"
#include "cluster/names.h"
#include "log/shape.h"

typedef struct mr_template_input {
    const mr_names *names;
    const mr_log_shape *shape; /* NULL: files that mention the log are refused */
} mr_template_input;

mr_error *mr__template_render(const mr_embed *file, const mr_template_input *input,
                              mr_buf *out) MR_MUST_CHECK;

/* "" for the default table names, else a short hash of them all: two fleets with their own tables
 * in one schema have their own functions and their own line of migrations. */
enum { MR_FLEET_MAX = 9 };
void mr__names_fleet(const mr_names *names, char out[MR_FLEET_MAX]);
/* A control-plane function for these tables, e.g. "millrace"."advance_checkpoint". */
void mr__names_function(const mr_names *names, const char *base, mr_buf *out);

#endif
