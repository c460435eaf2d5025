/* Who runs what: spreads consumers over the workers that can run them. Pure and deterministic. */
#ifndef MR_CLUSTER_ASSIGNMENT_H
#define MR_CLUSTER_ASSIGNMENT_H

#include "base/error.h"

/* In the order of the option's choices. */
typedef enum mr_assignment_strategy {
    MR_ASSIGN_ROUND_ROBIN, /* sorted names over sorted ids: depends on nothing but who is there */
    MR_ASSIGN_STICKY,      /* the fewest moves that keep loads within one of each other */
} mr_assignment_strategy;

typedef struct mr_member {
    char *id;
    char **consumers; /* what it can run, sorted by bytes */
    size_t count;
} mr_member;

typedef struct mr_duty {
    char *name;
    char *owner; /* now; NULL = none */
    int wanted;  /* index of the member it should go to; -1 = nobody can run it */
} mr_duty;

/* What the leader sees. Owns its strings. */
typedef struct mr_fleet {
    mr_member *members;
    size_t member_count;
    mr_duty *duties;
    size_t duty_count;
} mr_fleet;

void mr__fleet_free(mr_fleet *fleet);
bool mr__member_can(const mr_member *member, const char *consumer);
/* Sorts members and duties, then fills in `wanted`. */
mr_error *mr__assign(mr_fleet *fleet, mr_assignment_strategy strategy) MR_MUST_CHECK;
/* Whether the duty's owner is not the wanted one. */
bool mr__duty_moves(const mr_fleet *fleet, const mr_duty *duty);

#endif
