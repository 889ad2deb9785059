/*
 * Holds that last until somebody wants them: the clock. hold.pml says what a hold covers, and
 * there H has always passed; this is about when a hold ends. One session and its proxy, who
 * asks for all sessions of that proxy, and one takeover.
 *
 * A unit is 25 ms. Ages are counted in whole units, so that an age of n is more than n - 1
 * and at most n units. Where a rule has a limit, each side has the count that is worse for
 * it: a timer may be one unit late, and the takeover takes idle for 250 ms what is so for
 * 226.
 */

#define H 2           /* 50 ms */
#define ASK 1         /* the questions' distance: at most this */
#define IDLE 10       /* 250 ms */
/* The takeover looks round after 300, 500 and 800 ms. */
#define LOOK(n) ((n) == 1 -> 12 : ((n) == 2 -> SECOND : 32))
#ifndef SECOND
#define SECOND 20
#endif
#ifndef WAY
#define WAY 1         /* one way between proxy and server takes at most this */
#endif
#ifndef SLOW
#define SLOW 8        /* so much may an answer to the question take; later ones count as lost */
#endif
#define GROUP_TIME 2  /* so long runs a group of the client's at most */

/* The promises: a takeover is through so long after it came, if the session's proxy lives,
 * and after so many looks in any case. */
#ifndef SOON
#define SOON 9        /* 225 ms */
#endif
#ifdef THREE_LOOKS
#define END 32
#else
#define END SECOND
#endif

/* --- What is on its way between the proxy and the session's backend --- */
byte what;            /* one message or its answer: */
#define NOTHING 0
#define GROUP 1       /* runs under the hold */
#define TAKE 2        /* gives back, asks again, and runs a group */
#define BACK 3        /* gives back */
byte where;
#define TO 0
#define RUNS 1
#define FROM 2
byte age;             /* in this place */
bool fine;            /* of an answer: the session holds */

/* --- The proxy --- */
bool frozen;
bool counts;          /* it counts on the hold */
byte proof = H + 1;   /* the age of its last proof */
bool told;            /* the last answer: somebody wants it */

/* --- Who asks: a connection of its own --- */
byte question;        /* NOTHING, or TO, or FROM, plus 1 */
byte asked;           /* the age of the question */
byte pause;           /* the time since the last one */
bool answer;          /* on its way: somebody wants it */
bool silent;          /* nobody asks any more, or nobody ever did */

/* --- The server --- */
bool held;
byte idle;            /* the age of the session's state idle, outside a transaction */
bool came;            /* a takeover waits, */
bool key;             /* and has the wanted key */
byte known;           /* the age of the wait */
bool heard;           /* it had the wanted key since the look before, or since it came */
byte looked;
bool missed;          /* at its first attempt it didn't get the key */

#define LIMIT(v, n) v = (v < n -> v + 1 : n)
#define OUTSIDE (what == NOTHING)

/* The hold ends: at once if it is known to be wanted; without a proof, H after the last. Then
 * the next group takes it anew, and an idle session gives it back. */
#ifdef UNPROVEN
#define EXPIRED told
#else
#define EXPIRED (told || proof >= H)
#endif
#if defined(UNPROVEN) || defined(IDLE_SECOND)
#define LATE told
#else
#define LATE (told || proof > H)
#endif

/* What happens before time goes on. */
#define MUST_GIVE_BACK (counts && OUTSIDE && LATE)
#define DUE (what != NOTHING && (where == RUNS && age >= GROUP_TIME || where != RUNS && age >= WAY && !(frozen && where == FROM)))
#define MUST_LOOK (came && known >= LOOK(looked + 1))
#define MUST_ASK (!silent && question == NOTHING && pause >= ASK)
#define MUST_ANSWER (question != NOTHING && asked >= SLOW)

inline send(m) { what = m; where = TO; age = 0 }

/* The session's lock is free: the takeover, which is in the queue, has it. */
inline through() {
  printf("  through after %d\n", known);
  came = false; key = false; known = 0; heard = false; looked = 0; missed = false
}

inline release() {
  held = false;
  if :: came -> through() :: else fi
}

/* The wanted key, which it tries for 10 ms. Another may have it for that long. */
inline take_key() {
  if
  :: key = true
#ifdef KEY_MISSED
  :: !missed -> missed = true; printf("  the wanted key isn't available\n")
#endif
  fi;
  heard = key
}

proctype proxy() {
end:
  do
  /* A group of the client's, if it has one. */
  :: atomic { !frozen && OUTSIDE && counts && !EXPIRED -> send(GROUP) }
  :: atomic { !frozen && OUTSIDE && (!counts || EXPIRED) -> send(TAKE); counts = false; printf("takes\n") }
  /* It may give back at any time: H has passed, it is wanted, or it ran nothing for a second. */
  :: atomic { !frozen && OUTSIDE && counts -> send(BACK); counts = false; printf("gives back\n") }
  /* An answer. */
  :: atomic { !frozen && what != NOTHING && where == FROM ->
       if
       :: what == TAKE && fine -> counts = true; proof = 0; told = false; printf("counts\n")
       :: else
       fi;
       what = NOTHING; where = TO; age = 0; fine = false }

  :: atomic { !frozen && question == NOTHING && !silent && pause >= 1 -> question = TO + 1; asked = 0; pause = 0 }
  :: atomic { !frozen && question == FROM + 1 ->
       if
       :: answer -> told = counts; printf("is told\n")
#ifdef ARRIVAL
       :: !answer -> proof = 0
#else
       :: !answer && asked < proof -> proof = asked; printf("a proof of age %d\n", asked)
       :: else
#endif
       fi;
       question = NOTHING; asked = 0; answer = false }

#ifdef FREEZE
  :: atomic { !frozen && came -> frozen = true; printf("the proxy freezes\n") }
#endif
  :: atomic { !silent -> silent = true; printf("nobody asks any more\n") }
  od
}

proctype server() {
end:
  do
  :: atomic { what != NOTHING && where == TO ->
       idle = 0; age = 0;
       if
       :: what == BACK -> release(); where = FROM
       :: what == GROUP -> assert(held); where = RUNS
       :: what == TAKE ->
          release(); /* lets the takeover in, behind which it then has the lock */
          held = true; fine = true; where = RUNS
       fi }
  :: atomic { what != NOTHING && where == RUNS -> where = FROM; age = 0; idle = 0 }

  /* The question comes to the server. Another who asks may be seen for a taker. */
  :: atomic { question == TO + 1 ->
       question = FROM + 1;
       if :: answer = key :: answer = true fi }
  :: atomic { question == FROM + 1 && asked >= SLOW -> question = NOTHING; asked = 0; answer = false }

  :: atomic { held && !came && known == 0 -> came = true; printf("a takeover comes\n"); take_key() }
  :: atomic { MUST_LOOK ->
       looked++;
       printf("  looks: idle for %d, known for %d\n", idle, known);
       if
#ifdef IDLE_BEFORE
       :: what != NOTHING && where == RUNS || idle < known ->
#elif defined(IDLE_KEYLESS)
       :: what != NOTHING && where == RUNS || idle < IDLE ->
#else
       :: what != NOTHING && where == RUNS || idle < IDLE || !heard ->
#endif
          if
          :: key
#ifdef KEY_ONCE
          :: !key
#else
          :: !key -> take_key()
#endif
          fi
       :: else ->
          assert(frozen); /* a live session isn't ended */
          held = false; frozen = false; counts = false; told = false; proof = H + 1;
          what = NOTHING; where = TO; age = 0; fine = false; through()
       fi }
  od
}

proctype clock() {
end:
  do
  :: atomic {
       (frozen || !MUST_GIVE_BACK && !MUST_ASK) && !DUE && !MUST_LOOK && !MUST_ANSWER ->
       LIMIT(proof, H + 1);
       if :: what != NOTHING && !(frozen && where == FROM) -> age++ :: else fi;
       if :: what != NOTHING && where == RUNS -> idle = 0 :: else -> LIMIT(idle, IDLE + 32) fi;
       if :: question != NOTHING -> LIMIT(asked, SLOW) :: else fi;
       if :: silent -> pause = 0 :: else -> LIMIT(pause, ASK) fi;
       if :: came -> known++; assert(known <= END) /* Evidence: I7 */; assert(frozen || missed || known <= SOON) :: else fi }
  od
}

init { atomic { run proxy(); run server(); run clock() } }
