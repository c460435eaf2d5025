/* Jobs gathered to be enqueued, as offsets into one block of bytes. */
#ifndef MR_QUEUE_DRAFT_H
#define MR_QUEUE_DRAFT_H

#include "base/buf.h"
#include "base/error.h"

typedef enum mr_job_text {
    MR_JOB_TEXT_PAYLOAD,
    MR_JOB_TEXT_KEY,
    MR_JOB_TEXT_RUN_AT,
    MR_JOB_TEXT_IDEMPOTENCY,
    MR_JOB_TEXT_TIMEOUT,
    MR_JOB_TEXT_METADATA,
    MR_JOB_TEXTS
} mr_job_text;

typedef struct mr_job_draft_row {
    mr_slice text[MR_JOB_TEXTS];
    int32_t priority;     /* -1 = the default */
    int32_t max_attempts; /* 0 = the queue's */
    int64_t id;           /* 0 until it is enqueued */
    bool created;
} mr_job_draft_row;

struct mr_job_draft {
    mr_buf bytes;
    mr_job_draft_row *rows;
    size_t count, capacity;
};

enum {
    MR_JOB_KEY_MAX = 1000,  /* bytes of a key or an idempotency key; enqueue_rows() has the same */
    MR_QUEUE_NAME_MAX = 255 /* bytes of a queue's name */
};

const char *mr__job_draft_bytes(const mr_job_draft *draft, mr_slice slice);
/* Bytes that the job's texts have together. */
size_t mr__job_draft_size(const mr_job_draft *draft, size_t index);

#endif
