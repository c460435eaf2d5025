/* Any bytes as a configuration file: an error or a configuration, never a crash or a leak. What was
 * accepted is asked for again, option by option. */
#include <millrace/millrace.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mr_conf *conf = mr_conf_new();
    if (conf == NULL)
        return 0;
    mr_error *error = mr_conf_parse(conf, (const char *)data, size, "fuzz.yaml");
    if (error != NULL && mr_error_message(error)[0] == '\0')
        __builtin_trap(); /* an error without words helps nobody */
    mr_error_free(error);
    for (size_t i = 0; i < mr_option_count(); i++)
        (void)mr_conf_get(conf, mr_option_name(mr_option_at(i)));
    for (size_t i = 0; i < mr_conf_consumer_count(conf); i++)
        (void)mr_conf_consumer_name(conf, i);
    mr_conf_free(conf);
    return 0;
}
