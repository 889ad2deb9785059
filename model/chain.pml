/*
 * Parties that hold in one backend, each under marks of its own: two proxies in a row, and a
 * client or stored code that holds by itself. hold.pml has one proxy that pipelines; here
 * there is one message at a time, and each proxy adds to it what the rules ask for.
 */

/* The client says, by a text that shows it: */
#define WRITE 0
#define BEGIN 1
#define COMMIT 2
#define ROLLBACK 3
#define SET 4        /* wirefence.token, to another token or to none */
#define HOLD 5       /* a text of nothing else, by which it holds itself */
#define UNHOLD 6
#define WORK 7       /* a statement whose stored code, of which no text shows anything, holds, unholds and seals */

/* Tokens. */
#define NONE 0
#define CURRENT 1
#define STALE 2
#define NEXT 3       /* higher than the recorded one: its first use records it */

#define IDLE 0
#define OPEN 1
#define FAILED 2

/* --- The backend --- */
byte tx;
bool level[3];       /* K for the session, by the marks: the client's, the near proxy's (1), the far one's (2) */
bool lost;           /* K for the session, by a mark that is gone */
bool twice;          /* the far proxy's mark is there, its level isn't: the next unlock takes another's */
bool xact;           /* K for the transaction */
bool owner;          /* K for the transaction, exclusively: it recorded a token */
byte variable = NONE;
byte before;         /* what a rollback restores */
byte wrote;          /* under which token */
bool wanted;         /* a takeover is in the queue */
bool ok;

/* --- The client --- */
byte direct;         /* the token that it holds itself, as far as it knows */

/* --- The proxies --- */
bool counts[3];
bool may[3];         /* it may hold: to be given back */

byte work;           /* groups under K since a takeover is in the queue */
#ifndef MOST
#define MOST 2
#endif
bool came;
byte cancels = 1;
byte s, token;

#define HELD (level[0] || level[1] || level[2] || lost)
#define HAS (HELD || xact || owner)
#define OUTSIDE (tx == IDLE)

/* No commit under a stale token, and none under one that isn't recorded, behind which lower
 * ones could commit. */
inline judge() { assert(wrote != STALE) /* Evidence: I1, I2 */; assert(wrote != NEXT) }

/* A grant is recorded: what there is becomes stale, but what the transaction that records it
 * has written; the two commit together. */
inline supersede() {
  if :: variable == CURRENT -> variable = STALE :: else fi;
  if :: before == CURRENT -> before = STALE :: else fi;
  if :: direct == CURRENT -> direct = STALE :: else fi
}

inline end_transaction() {
  tx = IDLE; xact = false; owner = false; wrote = NONE; before = variable
}

/* An error: outside a transaction it is all over. */
inline fail() {
  ok = false;
  variable = before;
  if
  :: tx == IDLE -> end_transaction()
  :: else -> end_transaction(); tx = FAILED
  fi
}

/* Party k unlocks K as often as its mark is there. */
inline give_back(k) {
#ifdef ONE_MARK
  level[0] = false; level[1] = false; level[2] = false; lost = false
#else
  if
  :: k == 2 && twice ->
     if
     :: level[1] -> level[1] = false
     :: !level[1] && level[0] -> level[0] = false
     :: else
     fi;
     twice = false
  :: else -> level[k] = false
  fi
#endif
}

/* The rest of a hold's or check's wait: until it gets the lock. */
#define FREE (!wanted || HAS)

/* Raises 55006 if the session has any mark, and waits until it is alone. */
inline record_token() {
#ifdef OWN_MARKS_ONLY
  if
  :: level[0] -> fail()
  :: else -> supersede(); owner = true
#else
  if
  :: HELD || twice -> fail()
  :: else -> supersede(); owner = true
#endif
  fi;
  if
  :: ok && variable == NEXT -> variable = CURRENT
  :: else
  fi
}

/* A check of the variable in the session's transaction. */
inline check() {
  if
  :: !ok || variable == NONE
  :: else ->
     if
     :: tx == FAILED -> ok = false
     :: else ->
        atomic { FREE -> skip };
        atomic {
          if
          :: variable == STALE -> fail()
          :: variable == CURRENT -> xact = true
          :: variable == NEXT -> record_token()
          fi }
     fi
  fi
}

/* proxy_hold of party k, in a transaction of its own: gives back, then asks anew. It holds
 * nothing if it finds the resource wanted. That is no certainty: the takeover may have missed the wanted
 * key, and what needs a hold doesn't look. */
inline proxy_hold(k) {
  atomic {
    give_back(k);
    if
    :: cancels > 0 -> cancels--; ok = false
    :: variable == NONE || wanted -> ok = false
    :: variable != NONE
    fi };
  if
  :: ok ->
     atomic { FREE -> skip };
     atomic {
       if
       :: variable == STALE -> ok = false
       :: variable == CURRENT -> level[k] = true
       :: variable == NEXT ->
          if
#ifndef OWN_MARKS_ONLY
          :: HELD || twice -> ok = false
#else
          :: level[0] -> ok = false
#endif
          :: else -> supersede(); variable = CURRENT; before = CURRENT; level[k] = true
          :: cancels > 0 -> cancels--; level[k] = true; ok = false /* the commit fails: the lock stays, the record doesn't */
          fi
       fi }
  :: else
  fi;
  atomic {
#ifdef ROW_COUNTS
    counts[k] = level[k]; /* its answer came before the commit */
#else
    counts[k] = ok;
#endif
    printf("proxy %d takes its hold: %d\n", k, ok);
    may[k] = true; ok = true }
}

inline proxy_unhold(k) {
  atomic {
    if
    :: true -> give_back(k); may[k] = false
    :: cancels > 0 -> cancels--; ok = false;
#ifdef TORN
       if :: level[k] -> level[k] = false; lost = true :: else fi
#elif defined(LEVEL_FIRST)
       if :: k == 2 && level[2] && !twice -> level[2] = false; twice = true :: else fi
#endif
       skip
    fi };
  atomic { printf("proxy %d gives back: %d\n", k, ok); counts[k] = false; ok = true }
}

/* The far proxy passes on an exchange of the near one's, which names functions of the
 * proxy's hold and is alone outside a transaction: it gives back first, and puts nothing ahead. */
inline far_passes_on() {
#ifndef PASSES_ON
  do
  :: may[2] -> proxy_unhold(2)
  :: else -> break
  od;
  counts[2] = false;
#endif
#ifdef CHECK_AHEAD
  check(); /* the far proxy's */
  assert(ok || variable == STALE || !OUTSIDE); /* its own exchange is refused, and will be again */
#endif
  skip
}

/* Without the far proxy, what it does is done. */
#ifdef ONE_PROXY
#define FAR false
#define COVERED counts[1]
#else
#define FAR true
#define COVERED (counts[1] && counts[2])
#endif

/* When a takeover waits, H has passed. */
#define MUST_END(k) (may[k] && OUTSIDE && (came || !counts[k]))
#define MAY_END(k) (may[k] && OUTSIDE)

/* What the near proxy (1) or the far one (2) does ahead of a group of the client's. */
inline ahead(k) {
  if
  :: MAY_END(k) && (k == 1 || FAR) ->
     if
     :: true -> if :: k == 1 -> far_passes_on() :: else fi;
        do
        :: may[k] -> proxy_unhold(k)
        :: else -> break
        od
     :: true -> if :: k == 1 -> far_passes_on() :: else fi;
        proxy_hold(k)
     :: !MUST_END(k) -> skip
     fi
  :: !may[k] && OUTSIDE && variable != NONE && (k == 1 || FAR) ->
     if
     :: true -> if :: k == 1 -> far_passes_on() :: else fi;
        proxy_hold(k)
     :: skip
     fi
  :: else
  fi
}

inline commit() {
  printf("COMMIT\n");
  judge(); end_transaction()
}

proctype session() {
end:
  do
  :: /* The client's next group, and what it is to be. */
     atomic {
       ok = true;
       if
       :: s = WRITE :: s = BEGIN :: s = COMMIT :: s = ROLLBACK :: s = SET
       :: s = HOLD :: s = UNHOLD :: s = WORK
       fi;
       if
       :: came && OUTSIDE && !HAS -> s = WRITE /* it hasn't the lock: nobody waits for it */
       :: came && !OUTSIDE -> if :: s = COMMIT :: s = ROLLBACK fi
       :: came && OUTSIDE && (s == HOLD || s == BEGIN) && direct == NONE -> s = WRITE
       :: came && direct != NONE -> s = UNHOLD /* a direct client that holds for ever is ended, in lasting.pml */
       :: else
       fi };
     if
     :: s == WRITE || s == BEGIN || s == WORK || s == HOLD || s == UNHOLD ->
        ahead(1);
        if
        :: (s == HOLD || s == UNHOLD) && OUTSIDE -> far_passes_on()
        :: (s == HOLD || s == UNHOLD) && !OUTSIDE -> check()
        :: else -> ahead(2)
        fi
     :: else
     fi;
     /* What isn't covered is checked; by each proxy, so once is enough. */
     if
     :: (s == WRITE || s == WORK) && !COVERED -> check()
     :: else
     fi;
     atomic {
       if
       :: s == HOLD || s == UNHOLD -> counts[1] = false; counts[2] = false
       :: s == SET -> counts[1] = false; counts[2] = false
       :: else
       fi };
     if
     :: s == HOLD && ok && tx == IDLE && direct == NONE ->
        atomic { FREE -> level[0] = true; direct = CURRENT; printf("holds directly\n") }
     :: s == UNHOLD && ok && tx == IDLE -> atomic { give_back(0); direct = NONE }
     :: s == WORK && ok && tx == OPEN && direct == NONE ->
        atomic { FREE -> level[0] = true };
        atomic { give_back(0); printf("stored code has held and unheld\n") }
     :: s == WORK && ok && tx == IDLE ->
        atomic {
          if
#ifdef OWN_MARKS_ONLY
          :: !level[0] && !wanted -> supersede(); printf("stored code has sealed\n")
#else
          :: !HELD && !twice && !wanted -> supersede(); printf("stored code has sealed\n")
#endif
          :: true
          fi;
          end_transaction() }
     :: s == WRITE && ok && tx != FAILED ->
        atomic {
          token = (variable == NONE -> direct : variable);
          if
          :: token != NONE && wrote != STALE -> wrote = token
          :: else
          fi;
          printf("writes under %d\n", token);
          if :: came && HAS -> work++; assert(work <= MOST) :: else fi };
        atomic { if :: tx == IDLE -> commit() :: else fi }
     :: s == BEGIN && ok && tx == IDLE -> atomic { tx = OPEN; printf("BEGIN\n") }
     :: s == COMMIT && tx == OPEN -> atomic { commit() }
     :: s == COMMIT && tx == FAILED -> atomic { end_transaction() }
     :: s == ROLLBACK -> atomic { variable = before; end_transaction() }
     :: s == SET && tx != FAILED ->
        atomic {
          printf("SET\n");
          if :: variable = NONE :: variable = CURRENT :: variable = STALE :: variable = NEXT fi;
          if :: tx == IDLE -> before = variable :: else fi }
     :: else
     fi;
     atomic {
       if :: tx == IDLE -> xact = false; owner = false; wrote = NONE :: else fi;
       if :: !HAS -> work = 0 :: else fi;
       s = 0; token = 0; ok = true }
  od
}

proctype takeover() {
end:
  atomic { true -> wanted = true; came = true; printf("a takeover queues\n") };
  atomic { !HAS -> supersede(); if :: wrote == CURRENT -> wrote = STALE :: else fi; wanted = false; came = false; work = 0; printf("SEALED\n"); goto end }
}

init { atomic { run session(); run takeover() } }
