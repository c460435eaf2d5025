/* A lane's own claims of the built-in table. Each has a row in the database by which others find
 * its jobs when this worker dies; the lane says when all jobs of one are over, so that the row
 * goes.
 *
 * What must stay true: a claim is in the list from the answer that gave it until its row is known
 * to be gone. What is not in the list, the database takes for a claim whose answer was lost. */
#include "runtime/lane.h"

#include <stdlib.h>

mr_lane_claim *mr__lane_claim_open(mr_lane *lane, int64_t fence)
{
    mr_lane_claim *claim = lane->claims;
    while (claim != NULL && claim->fence != fence)
        claim = claim->next;
    if (claim == NULL) {
        claim = calloc(1, sizeof(*claim));
        if (claim == NULL)
            return NULL;
        *claim = (mr_lane_claim){.fence = fence, .next = lane->claims};
        lane->claims = claim;
        if (fence > lane->highest)
            lane->highest = fence;
    }
    claim->open++;
    return claim;
}

static bool spent(const mr_lane_claim *claim)
{
    return claim->open == 0 && !claim->kept;
}

void mr__lane_claims_put(mr_lane *lane, mr_claims_told by, mr_buf *over, mr_buf *known)
{
    bool none = true;
    for (mr_lane_claim *claim = lane->claims; claim != NULL; claim = claim->next) {
        if (known != NULL)
            mr__array_add_number(known, claim == lane->claims, claim->fence);
        if (!spent(claim))
            continue;
        mr__array_add_number(over, none, claim->fence);
        none = false;
        claim->told |= (unsigned)by;
    }
    mr__buf_puts(over, none ? "{}" : "}");
    if (known != NULL)
        mr__buf_puts(known, lane->claims == NULL ? "{}" : "}");
}

void mr__lane_claims_told(mr_lane *lane, mr_claims_told by, bool done)
{
    for (mr_lane_claim **at = &lane->claims; *at != NULL;) {
        mr_lane_claim *claim = *at;
        if (done && (claim->told & (unsigned)by) != 0) {
            *at = claim->next;
            free(claim);
            continue;
        }
        claim->told &= ~(unsigned)by;
        at = &claim->next;
    }
}

int64_t mr__lane_claims_below(const mr_lane *lane)
{
    int64_t last = lane->highest;
    /* The answer to a claim that is under way may say any fence above those that were heard of. */
    if (!lane->claiming && lane->care.ceiling > last)
        last = lane->care.ceiling;
    return last + 1;
}

void mr__lane_claims_free(mr_lane *lane)
{
    while (lane->claims != NULL) {
        mr_lane_claim *claim = lane->claims;
        lane->claims = claim->next;
        free(claim);
    }
}
