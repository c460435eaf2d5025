/* What to do about a failure. Pure.
 *
 * What must stay true: an event is given up only when it is proven to be the one (it ran by itself,
 * behind a savepoint of its own, or its own answer says so), and never because the server or the
 * handler's program was away. */
#include "consumer/policy.h"

#include "pg/conn.h"

mr_fault mr__fault_of(const mr_error *error, bool own, bool stopping)
{
    mr_code code = mr_error_code(error);
    const char *sqlstate = mr_error_sqlstate(error);
    if (code == MR_E_FATAL)
        return MR_FAULT_FATAL;
    if (code == MR_E_CANCELLED && (stopping || !own))
        return MR_FAULT_NOBODY;
    if (code == MR_E_TIMEOUT)
        return MR_FAULT_RETRYABLE;
    if (mr__pg_nobodys_fault(error))
        return MR_FAULT_NOBODY;
    if (sqlstate[0] != '\0')
        return mr__pg_sqlstate_permanent(sqlstate) ? MR_FAULT_PERMANENT : MR_FAULT_RETRYABLE;
    if (!own)
        return code == MR_E_CONNECT || code == MR_E_FENCED ? MR_FAULT_NOBODY : MR_FAULT_RETRYABLE;
    if (code == MR_E_IO)
        return MR_FAULT_HANDLER;
    return mr_error_retryable(error) ? MR_FAULT_RETRYABLE : MR_FAULT_PERMANENT;
}

int64_t mr__policy_wait(int64_t base, int64_t most, int attempt)
{
    int64_t wait = base;
    for (int i = 1; i < attempt && wait < most; i++)
        wait *= 2;
    return wait < most ? wait : most;
}

/* Blames nobody yet: first the same again, then a savepoint an event, then an event at a time. */
static void look_closer(const mr_policy *policy, mr_trial *trial, const mr_failure *failure)
{
    bool patient =
        failure->fault != MR_FAULT_PERMANENT && trial->rounds < 2 && policy->max_retries != 0;
    if (trial->mode == MR_MODE_ISOLATE)
        trial->mode = MR_MODE_SINGLE;
    else if (trial->mode == MR_MODE_WHOLE && !patient)
        trial->mode = MR_MODE_ISOLATE;
    if (failure->end > trial->until)
        trial->until = failure->end;
}

static mr_verdict decide_fatal(const mr_policy *policy, const mr_trial *trial, int64_t *wait)
{
    if (policy->max_failures > 0 && trial->rounds >= policy->max_failures)
        return MR_VERDICT_STOP;
    *wait = mr__policy_wait(policy->fatal_base, policy->fatal_most, trial->rounds);
    return MR_VERDICT_RETRY;
}

/* What has been found guilty of the trouble: an event, or the handler as a whole. */
static mr_verdict decide_guilty(const mr_policy *policy, mr_trial *trial, const mr_failure *failure,
                                int64_t *wait)
{
    bool limited = policy->max_retries >= 0;
    bool over =
        limited && (failure->fault == MR_FAULT_PERMANENT || trial->attempts > policy->max_retries);
    if (!over) {
        *wait = mr__policy_wait(policy->retry_base, policy->retry_most, trial->attempts);
        return MR_VERDICT_RETRY;
    }
    if (failure->fault == MR_FAULT_HANDLER || policy->on_failure != MR_ON_DEAD_LETTER)
        return MR_VERDICT_PAUSE;
    return MR_VERDICT_CONDEMN;
}

mr_verdict mr__policy_decide(const mr_policy *policy, mr_trial *trial, const mr_failure *failure,
                             int64_t *wait)
{
    *wait = 0;
    /* One event's failures are not held against another. */
    if (failure->position != trial->suspect)
        trial->attempts = 0;
    trial->suspect = failure->position;
    trial->attempts++;
    trial->rounds++;
    if (failure->fault == MR_FAULT_FATAL)
        return MR_VERDICT_STOP;
    if (policy->on_failure == MR_ON_FATAL)
        return decide_fatal(policy, trial, wait);
    if (failure->fault == MR_FAULT_HANDLER)
        return decide_guilty(policy, trial, failure, wait);
    if (!failure->proven || failure->position == 0) {
        /* The next attempt comes at once when it only serves to find the one to blame. */
        mr_mode before = trial->mode;
        look_closer(policy, trial, failure);
        if (trial->mode == before)
            *wait = mr__policy_wait(policy->retry_base, policy->retry_most, trial->attempts);
        return MR_VERDICT_RETRY;
    }
    trial->position = failure->position;
    trial->mode = trial->mode == MR_MODE_SINGLE ? MR_MODE_SINGLE : MR_MODE_ISOLATE;
    if (failure->position > trial->until)
        trial->until = failure->position;
    return decide_guilty(policy, trial, failure, wait);
}

void mr__policy_passed(mr_trial *trial, int64_t position)
{
    if (trial->position != 0 ? position >= trial->position : position >= trial->until)
        *trial = (mr_trial){0};
}
