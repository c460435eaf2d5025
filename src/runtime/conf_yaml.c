/* Reads a worker's configuration from YAML; every error carries file and line. */
#include "base/list.h"
#include "runtime/conf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
    yaml_document_t *document;
    const char *origin;
    mr_conf *conf;
} reader;

static yaml_node_t *node_at(reader *r, int index)
{
    return yaml_document_get_node(r->document, index);
}

static mr_error *at_line(const reader *r, const yaml_node_t *node, mr_error *error)
{
    return mr__error_prefix(error, "%s:%zu", r->origin, node->start_mark.line + 1);
}

static const char *scalar_text(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value;
}

static const char *kind_name(const yaml_node_t *node)
{
    switch (node->type) {
    case YAML_MAPPING_NODE:
        return "a mapping";
    case YAML_SEQUENCE_NODE:
        return "a list";
    case YAML_SCALAR_NODE:
        return "a single value";
    case YAML_NO_NODE:
    default:
        return "nothing";
    }
}

static mr_error *want_kind(const reader *r, const yaml_node_t *node, yaml_node_type_t type,
                           const char *what, const char *wanted)
{
    if (node->type == type)
        return NULL;
    return at_line(r, node,
                   mr__error(MR_E_CONFIG, "%s must be %s, not %s", what, wanted, kind_name(node)));
}

/* A scalar without bytes that C strings cannot hold. */
static mr_error *want_scalar(const reader *r, const yaml_node_t *node, const char *what)
{
    MR_TRY(want_kind(r, node, YAML_SCALAR_NODE, what, "a single value"));
    if (strlen(scalar_text(node)) != node->data.scalar.length)
        return at_line(r, node, mr__error(MR_E_CONFIG, "%s holds a NUL character", what));
    return NULL;
}

/* Same key twice in one mapping: YAML forbids it, libyaml does not look. */
static mr_error *check_twice(reader *r, yaml_node_t *mapping, yaml_node_pair_t *pair)
{
    yaml_node_t *key = node_at(r, pair->key);
    for (yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < pair; p++)
        if (strcmp(scalar_text(node_at(r, p->key)), scalar_text(key)) == 0)
            return at_line(r, key,
                           mr__error(MR_E_CONFIG, "'%.80s' is given twice", scalar_text(key)));
    return NULL;
}

/* The option's value as the one-string form that the table parses. */
static mr_error *value_text(reader *r, yaml_node_t *node, const mr_option *option, mr_buf *out)
{
    if (node->type == YAML_SEQUENCE_NODE && option->type == MR_TYPE_LIST) {
        for (yaml_node_item_t *i = node->data.sequence.items.start;
             i < node->data.sequence.items.top; i++) {
            MR_TRY(want_scalar(r, node_at(r, *i), option->name));
            mr__list_add(out, scalar_text(node_at(r, *i)));
        }
        return NULL;
    }
    if (option->type == MR_TYPE_MAP) {
        MR_TRY(want_kind(r, node, YAML_MAPPING_NODE, option->name, "a mapping"));
        for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
             p++) {
            MR_TRY(want_scalar(r, node_at(r, p->key), option->name));
            MR_TRY(check_twice(r, node, p));
            MR_TRY(want_scalar(r, node_at(r, p->value), option->name));
            mr__list_add_pair(out, scalar_text(node_at(r, p->key)),
                              scalar_text(node_at(r, p->value)));
        }
        return NULL;
    }
    MR_TRY(want_scalar(r, node, option->name));
    /* A lone scalar for a list is one item, commas and all. */
    if (option->type == MR_TYPE_LIST)
        mr__list_add(out, scalar_text(node));
    else
        mr__buf_puts(out, scalar_text(node));
    return NULL;
}

static mr_error *set_option(reader *r, mr_bag *bag, const char *section, yaml_node_t *key,
                            yaml_node_t *value)
{
    int option = mr__option_find(section, scalar_text(key));
    if (option < 0)
        return at_line(r, key, mr__option_unknown(section, scalar_text(key)));
    MR_AUTO_BUF text = {0};
    MR_TRY(value_text(r, value, mr_option_at((size_t)option), &text));
    if (text.failed)
        return mr__error_nomem();
    return at_line(r, value, mr__bag_set(bag, (mr_opt)option, mr__buf_text(&text)));
}

static mr_error *read_section(reader *r, yaml_node_t *node, mr_bag *bag, const char *section)
{
    MR_TRY(want_kind(r, node, YAML_MAPPING_NODE, section, "a mapping"));
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
         p++) {
        MR_TRY(want_scalar(r, node_at(r, p->key), "an option's name"));
        MR_TRY(check_twice(r, node, p));
        MR_TRY(set_option(r, bag, section, node_at(r, p->key), node_at(r, p->value)));
    }
    return NULL;
}

static mr_error *read_consumer(reader *r, yaml_node_t *node)
{
    mr_consumer *consumer = mr_consumer_new(NULL);
    if (consumer == NULL)
        return mr__error_nomem();
    mr_error *error = read_section(r, node, &consumer->bag, "consumer");
    if (error != NULL) {
        mr_consumer_free(consumer);
        return error;
    }
    return at_line(r, node, mr_conf_take_consumer(r->conf, consumer));
}

static mr_error *read_consumers(reader *r, yaml_node_t *node)
{
    MR_TRY(want_kind(r, node, YAML_SEQUENCE_NODE, "consumers", "a list"));
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top;
         i++)
        MR_TRY(read_consumer(r, node_at(r, *i)));
    return NULL;
}

static mr_error *read_queue(reader *r, yaml_node_t *node)
{
    mr_queue *queue = mr_queue_new(NULL);
    if (queue == NULL)
        return mr__error_nomem();
    mr_error *error = read_section(r, node, &queue->bag, "queue");
    if (error != NULL) {
        mr_queue_free(queue);
        return error;
    }
    return at_line(r, node, mr_conf_take_queue(r->conf, queue));
}

static mr_error *read_queues(reader *r, yaml_node_t *node)
{
    MR_TRY(want_kind(r, node, YAML_SEQUENCE_NODE, "queues", "a list"));
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top;
         i++)
        MR_TRY(read_queue(r, node_at(r, *i)));
    return NULL;
}

static mr_error *read_entry(reader *r, yaml_node_t *key, yaml_node_t *value)
{
    const char *name = scalar_text(key);
    if (strcmp(name, "worker") == 0 || strcmp(name, "log") == 0)
        return read_section(r, value, &r->conf->bag, name);
    if (strcmp(name, "consumers") == 0)
        return read_consumers(r, value);
    if (strcmp(name, "queues") == 0)
        return read_queues(r, value);
    if (mr__option_find("", name) >= 0)
        return set_option(r, &r->conf->bag, "", key, value);
    if (mr__option_find("worker", name) >= 0)
        return at_line(r, key, mr__error(MR_E_CONFIG, "'%s' belongs under 'worker:'", name));
    return at_line(r, key,
                   mr__error(MR_E_CONFIG,
                             "unknown key '%.80s'; a file has database, schema, worker, log, "
                             "consumers and queues",
                             name));
}

static mr_error *read_root(reader *r)
{
    yaml_node_t *root = yaml_document_get_root_node(r->document);
    if (root == NULL)
        return mr__error(MR_E_CONFIG,
                         "%s: the file is empty; it needs at least 'consumers:' or 'queues:'",
                         r->origin);
    MR_TRY(want_kind(r, root, YAML_MAPPING_NODE, "the file", "a mapping"));
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
         p++) {
        MR_TRY(want_scalar(r, node_at(r, p->key), "a key"));
        MR_TRY(check_twice(r, root, p));
        MR_TRY(read_entry(r, node_at(r, p->key), node_at(r, p->value)));
    }
    return NULL;
}

/* What the parser says, at its line. For bytes that are no text it knows only the offset. */
static mr_error *syntax_error(const yaml_parser_t *parser, const char *text, size_t length,
                              const char *origin)
{
    size_t line = parser->problem_mark.line + 1;
    if (parser->error == YAML_READER_ERROR) {
        line = 1;
        for (size_t i = 0; i < length && i < parser->problem_offset; i++)
            line += text[i] == '\n';
    }
    return mr__error(MR_E_CONFIG, "%s:%zu: not valid YAML: %s%s%s", origin, line,
                     parser->problem != NULL ? parser->problem : "?",
                     parser->context != NULL ? " " : "",
                     parser->context != NULL ? parser->context : "");
}

/* Whatever follows the first document would be left out in silence. */
static mr_error *expect_end(yaml_parser_t *parser, const char *text, size_t length,
                            const char *origin)
{
    yaml_document_t document;
    if (yaml_parser_load(parser, &document) == 0)
        return syntax_error(parser, text, length, origin);
    mr_error *error = NULL;
    if (yaml_document_get_root_node(&document) != NULL)
        error = mr__error(MR_E_CONFIG,
                          "%s:%zu: a second document begins here; one file is one configuration",
                          origin, document.start_mark.line + 1);
    yaml_document_delete(&document);
    return error;
}

mr_error *mr_conf_parse(mr_conf *conf, const char *text, size_t length, const char *origin)
{
    yaml_parser_t parser;
    if (yaml_parser_initialize(&parser) == 0)
        return mr__error_nomem();
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    yaml_document_t document;
    if (yaml_parser_load(&parser, &document) == 0) {
        mr_error *error = syntax_error(&parser, text, length, origin);
        yaml_parser_delete(&parser);
        return error;
    }
    reader r = {.document = &document, .origin = origin, .conf = conf};
    mr_error *error = read_root(&r);
    yaml_document_delete(&document);
    if (error == NULL)
        error = expect_end(&parser, text, length, origin);
    yaml_parser_delete(&parser);
    return error;
}

mr_error *mr_conf_load(mr_conf *conf, const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return mr__error(MR_E_CONFIG, "%s: %s", path, strerror(errno));
    MR_AUTO_BUF text = {0};
    char chunk[8192];
    size_t got;
    enum { MAX_FILE = 16 * 1024 * 1024 };
    while ((got = fread(chunk, 1, sizeof(chunk), file)) > 0 && text.length < MAX_FILE)
        mr__buf_add(&text, chunk, got);
    bool failed = ferror(file) != 0;
    int cause = errno;
    (void)fclose(file);
    if (failed)
        return mr__error(MR_E_CONFIG, "%s: %s", path, strerror(cause));
    if (text.length >= MAX_FILE)
        return mr__error(MR_E_CONFIG, "%s: larger than 16 MiB; is it a configuration?", path);
    if (text.failed)
        return mr__error_nomem();
    return mr_conf_parse(conf, mr__buf_text(&text), text.length, path);
}
