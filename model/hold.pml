/*
 * Holds: session-level locks beside the checks of single transactions, the lock's
 * queue, a proxy that pipelines, and takeovers. hold_test.go says which rule each
 * define leaves out, README.md what is exhaustive.
 *
 * There are no numbers of tokens here. A token is the current one or a stale one,
 * and a seal makes all that exist stale. So one search covers any number of
 * seals.
 *
 * A step is atomic where the lock or the session itself keeps others from telling
 * the difference. A seal is one step: while it has the lock no other process has it or
 * sees the row before the commit. So is a commit with the end of its locks, since a
 * lock that is kept longer only delays the takeover; and a group without a wait: under
 * the lock the row doesn't change, and without it a statement that is sent later does
 * the same. One session stands for one of many in I1 and I2: others can keep the
 * exclusive lock from the takeover, make it wait for a row, end it, and seal, and
 * alone it meets the first two as a stall and the others at any time. The searches
 * with two sessions confirm that for their statements.
 *
 * What stands for what: backend runs the groups of its session in order; proxy is the
 * client and the proxy's half of the session, and may send any statement; sealer is
 * takeovers, one after another: while one is in the queue, new shared locks wait
 * behind it, and a session that has the lock gets it again at once. HOLD is proxy_hold
 * in an exchange of the proxy's own, JOINT the same ahead of the group's own write,
 * which is a check where it can't be held or a takeover waits, BACK is proxy_unhold,
 * UNHOLD that and a check ahead of the first statement of a chained transaction.
 * was_cancelled is a cancel or an error, in the queue or with the lock taken; die a
 * lost connection or pg_terminate_backend; restore the variable after a rollback.
 *
 * SESSIONS (1 or 2), PIPE (groups that one session may have outstanding), LIVE
 * (I7 rather than I1 and I2), PREEMPT (the takeover has a preempt_after), SYM
 * (equal sessions are one; for searches that find nothing). Statements of the
 * clients: BLOCKS, SAVEPOINTS, CHAINS, UNLOCKS, SETS, COMMENTS, OWNSEALS, ROWS.
 */

#ifndef SESSIONS
#define SESSIONS 1
#endif
#ifndef PIPE
#define PIPE 2
#endif
#define EACH(k) k : 0 .. SESSIONS - 1
#define AT(k) (i * PIPE + (k))

/* What a group brings with it: nothing, a check, a hold, or it is an exchange of the
 * proxy's own that takes the hold or gives it back. */
#define BARE 0
#define CHECK 1
#define HOLD 2
#define BACK 3
#define JOINT 4      /* the hold is asked for ahead of the group's own write */
#define UNHOLD 5     /* the hold is given back at the beginning of a chained transaction, ahead of a check */
#define CHECKS(e) (e == CHECK || e == UNHOLD)
#define TAKES(e) (e == HOLD || e == JOINT)

/* The statement of a group. */
#define WRITE 0
#define BEGIN 1
#define COMMIT 2
#define ROLLBACK 3
#define SAVEPOINT 4
#define ROLLBACK_TO 5
#define RELEASE 6
#define UNLOCK 7     /* SELECT pg_advisory_unlock_all(), DISCARD ALL */
#define UNLOCKING 8  /* a write and then that, in one message */
#define NAME_IT 9    /* PREPARE x AS SELECT pg_advisory_unlock_all() */
#define EXECUTE 10   /* EXECUTE x */
#define SET 11       /* of wirefence.token, to whatever */
#define SEAL 12      /* by a function of which the text shows nothing */
#define PREPARE 13   /* PREPARE TRANSACTION */
#define COMMIT_IT 14 /* COMMIT PREPARED */
#define CHAIN 15     /* COMMIT AND CHAIN */

/* The fence of a group. */
#define VARIABLE 0
#define FRESH 1      /* in a comment: the current token */
#define STALE 2      /* in a comment: a stale one */

/* How a transaction stands, and what it has written. */
#define IDLE 0
#define OPEN 1
#define FAILED 2
#define NOTHING 0
#define CURRENT 1    /* under tokens that are current */
#define OLD 2        /* under one that is stale */

/* --- The server: a backend for each session --- */
byte tx[SESSIONS];
bool savepoint[SESSIONS];
byte top[SESSIONS];     /* what was written ahead of the savepoint */
byte sub[SESSIONS];     /* behind it */
bool session[SESSIONS]; /* the session has the shared lock */
byte xact[SESSIONS];    /* the transaction has it: 1 from outside the savepoint, 2 from behind it */
bool old[SESSIONS];     /* the session variable's token is stale */
bool set[SESSIONS];     /* it was set in this transaction */
byte stop[SESSIONS];    /* where the backend is within a group: */
#define BETWEEN 0       /* nowhere */
#define QUEUED 1        /* in the lock's queue */
#define GRANTED 2       /* it was in the queue and has the lock */
#define ENDING 3        /* ahead of an implicit commit */
#define BLOCKED 4       /* waits for the row */
bool wanted;            /* an exclusive lock is in the queue */
#ifdef ROWS
byte row = 2;           /* whose transaction has the row's lock */
bool rowsub;            /* it was locked behind the savepoint */
#endif
#ifdef SNAPSHOT
bool seen[SESSIONS];
#endif
#ifdef PREPARE_HELD
byte prepared[SESSIONS];
bool kept[SESSIONS];
#endif

/* --- The network: groups that were sent, and their answers in their places --- */
byte what[SESSIONS * PIPE];  /* BARE, CHECK, HOLD, BACK, JOINT */
byte text[SESSIONS * PIPE];  /* the statement; in an answer: 1 for success */
byte fence[SESSIONS * PIPE]; /* of the group; in an answer: how the transaction stands */
byte out[SESSIONS];          /* groups without an answer that the proxy has read */
byte done[SESSIONS];         /* of these the backend has answered */

/* --- The proxy's knowledge of each session --- */
bool counts[SESSIONS];       /* groups may count on the hold */
bool may[SESSIONS];          /* the session may have the lock: to be given back */
bool spoiled[SESSIONS];      /* the hold that is outstanding won't count */
bool named[SESSIONS];        /* an unlock has a name: it holds no more */
bool chained[SESSIONS];      /* it has chained transactions: likewise */
bool first[SESSIONS];        /* nothing but BEGIN was sent in its transaction */
bool fresh[SESSIONS];        /* nothing was sent behind COMMIT AND CHAIN */
byte held[SESSIONS];         /* the hold's fence */
byte known[SESSIONS];        /* how the transaction stood by the last answer */

#ifdef LIVE
byte pause[SESSIONS];        /* the client says nothing more; the proxy is frozen */
#define TALKS 0
#define QUIET 1
#define FROZEN 2
byte work[SESSIONS];         /* groups that ran under the lock since a takeover is in the queue */
bool came;                   /* a takeover has come and is not through */
byte cancels, freezes;
#ifndef MOST
#define MOST 3
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef FREEZES
#define FREEZES 2
#endif
/* Idle, and for so long that its proxy must be gone; stuck in the middle. */
#define IDLER(k) (tx[k] == IDLE && stop[k] == BETWEEN && done[k] == out[k])
#ifdef NO_IDLE_END
#define ENDS_IDLE(k) false
#else
#define ENDS_IDLE(k) IDLER(k)
#endif
#ifdef PREEMPT
#define ENDS(k) (HAS(k) && pause[k] == FROZEN && (ENDS_IDLE(k) || !IDLER(k)))
#else
#define ENDS(k) (HAS(k) && pause[k] == FROZEN && ENDS_IDLE(k))
#endif
#endif

/* Of use within a step, and 0 between steps. */
byte e, s, f, j, n;
bool stale, ok;

#define HAS(k) (session[k] || xact[k] > 0)
#if SESSIONS == 1
#define NOBODY (!HAS(0))
#define OTHERS true
#else
#define NOBODY (!HAS(0) && !HAS(1))
#define OTHERS (!HAS(1 - i))
#endif
#define WORSE(a, b) (a > b -> a : b)

/* I1 and I2 at once: at a commit no higher token is recorded. The tokens that
 * committed before, and those that an acquire has returned, are recorded ones. */
inline judge(written) { assert(written != OLD) /* Evidence: I1, I2 */ }

inline unlock_row() {
#ifdef ROWS
  if :: row == i -> row = 2; rowsub = false :: else fi
#else
  skip
#endif
}

/* The variable is what it was, and nobody here remembers what that was. */
inline restore() {
  if
  :: set[i] -> if :: old[i] = true :: old[i] = false fi
  :: else
  fi
}

inline end_transaction() {
  tx[i] = IDLE; savepoint[i] = false; top[i] = NOTHING; sub[i] = NOTHING; xact[i] = 0; set[i] = false;
  unlock_row()
}

inline undo_sub() {
  sub[i] = NOTHING;
  if :: xact[i] == 2 -> xact[i] = 0 :: else fi;
#ifdef ROWS
  if :: row == i && rowsub -> row = 2; rowsub = false :: else fi;
#endif
  restore()
}

/* An error in a group. */
inline fail() {
  ok = false;
  if
  :: tx[i] == IDLE -> end_transaction()
  :: tx[i] != IDLE && savepoint[i] -> undo_sub(); tx[i] = FAILED
  :: tx[i] != IDLE && !savepoint[i] ->
     restore(); end_transaction(); tx[i] = FAILED
  fi
}

inline commit() {
  printf("  s%d: COMMIT of %d and %d\n", i, top[i], sub[i]);
  judge(top[i]); judge(sub[i]);
  end_transaction()
}

inline lock_for_transaction(k) {
  xact[k] = (xact[k] == 0 -> (savepoint[k] -> 2 : 1) : xact[k])
}

/* A session lets go of all that it ever took. */
inline let_go() { session[i] = false }

/* A grant is recorded: every token there is becomes stale. */
inline record() {
  for (EACH(j)) {
    old[j] = true;
    top[j] = (top[j] == CURRENT -> OLD : top[j]);
    sub[j] = (sub[j] == CURRENT -> OLD : sub[j]);
    held[j] = (held[j] == FRESH -> STALE : held[j]);
#ifdef PREPARE_HELD
    prepared[j] = (prepared[j] == CURRENT -> OLD : prepared[j]);
#endif
    n = done[j];
    do
    :: n < out[j] ->
       fence[j * PIPE + n] = (fence[j * PIPE + n] == FRESH -> STALE : fence[j * PIPE + n]); n++
    :: else -> break
    od
  };
  printf("SEALED\n")
}

/* The exclusive lock leaves the queue: those behind it have theirs. */
inline serve_queue() {
  for (EACH(j)) {
    if
    :: stop[j] == QUEUED ->
       stop[j] = GRANTED;
       if
       :: TAKES(what[j * PIPE + done[j]]) -> session[j] = true
       :: else -> lock_for_transaction(j)
       fi
    :: else
    fi
  }
}

/* The session is gone, and its client comes back as a new one. */
inline die() {
  printf("  s%d: is ended\n", i);
  end_transaction();
  let_go();
  stop[i] = BETWEEN; out[i] = 0; done[i] = 0; known[i] = IDLE; held[i] = 0;
  counts[i] = false; may[i] = false; spoiled[i] = false; named[i] = false; chained[i] = false; first[i] = false; fresh[i] = false;
  for (n : 0 .. PIPE - 1) { what[AT(n)] = 0; text[AT(n)] = 0; fence[AT(n)] = 0 };
#ifdef LIVE
  pause[i] = TALKS; work[i] = 0;
#endif
  if :: old[i] = false :: old[i] = true fi
}

/* Two sessions in either order are one state. */
#ifdef SYM
#define SWAP(v) n = v[0]; v[0] = v[1]; v[1] = n
#define KEY(k) (tx[k] + 3 * (xact[k] + 3 * (session[k] + 2 * (top[k] + 3 * (sub[k] + 3 * (stop[k] + 5 * (out[k] + 3 * (done[k] + 3 * \
  (counts[k] + 2 * (may[k] + 2 * (spoiled[k] + 2 * (known[k] + 3 * (old[k] + 2 * (set[k] + 2 * (savepoint[k] + 2 * held[k])))))))))))))))
#define GROUPS(k) (what[k * PIPE] + 5 * (text[k * PIPE] + 16 * (fence[k * PIPE] + 4 * (what[k * PIPE + PIPE - 1] + 5 * (text[k * PIPE + PIPE - 1] + 16 * fence[k * PIPE + PIPE - 1])))))
inline canon() {
  if
  :: KEY(0) > KEY(1) || (KEY(0) == KEY(1) && GROUPS(0) > GROUPS(1)) ->
     SWAP(tx); SWAP(savepoint); SWAP(top); SWAP(sub); SWAP(session); SWAP(xact); SWAP(old); SWAP(set); SWAP(stop);
     SWAP(out); SWAP(done); SWAP(counts); SWAP(may); SWAP(spoiled); SWAP(named); SWAP(chained); SWAP(first); SWAP(fresh); SWAP(held); SWAP(known);
     for (j : 0 .. PIPE - 1) {
       n = what[j]; what[j] = what[PIPE + j]; what[PIPE + j] = n;
       n = text[j]; text[j] = text[PIPE + j]; text[PIPE + j] = n;
       n = fence[j]; fence[j] = fence[PIPE + j]; fence[PIPE + j] = n
     };
#ifdef ROWS
     row = (row == 2 -> 2 : 1 - row);
#endif
#ifdef LIVE
     SWAP(pause); SWAP(work);
#endif
  :: else
  fi
}
#else
inline canon() { skip }
#endif

/* The end of each step. */
inline settle() {
  canon();
  e = 0; s = 0; f = 0; j = 0; n = 0; stale = false; ok = false
}

/* The backend has done with a group. */
inline answer() {
  stop[i] = BETWEEN;
  xact[i] = (tx[i] == IDLE -> 0 : xact[i]); /* the implicit transaction is over */
  text[AT(done[i])] = ok;
  fence[AT(done[i])] = tx[i];
  what[AT(done[i])] = (what[AT(done[i])] >= HOLD -> what[AT(done[i])] : BARE);
#ifdef LIVE
  if
  :: wanted && HAS(i) && what[AT(done[i])] == BARE -> work[i]++; assert(work[i] <= MOST) /* Evidence: I7 */
  :: else
  fi;
  if :: !HAS(i) -> work[i] = 0 :: else fi;
#endif
  done[i]++
}

#ifdef LIVE
#define CANCELLED cancels > 0
#else
#define CANCELLED true
#endif
inline was_cancelled() {
#ifdef LIVE
  cancels--;
#endif
  printf("  s%d: cancelled\n", i)
}

proctype backend(byte i) {
end:
  do
  :: atomic { done[i] < out[i] && stop[i] == BETWEEN ->
       e = what[AT(done[i])]; s = text[AT(done[i])]; f = fence[AT(done[i])]; ok = true;
       if
       :: e == BACK ->
          if
          :: let_go()
          :: CANCELLED -> was_cancelled(); ok = false
          fi;
          goto answered
       :: TAKES(e) ->
#ifndef KEEPS_LOCK
          let_go();
#endif
#ifdef SNAPSHOT
          seen[i] = (f == STALE || f == VARIABLE && old[i]);
#endif
          if
          :: wanted && !HAS(i) -> stop[i] = QUEUED; goto settled
          :: else -> session[i] = true; goto verdict
          :: e == JOINT && (!wanted || HAS(i)) -> /* it can't be held: a check */
             e = CHECK; what[AT(done[i])] = CHECK; lock_for_transaction(i); goto verdict
          :: e == JOINT && wanted && !HAS(i) -> /* a takeover waits: a check behind it */
             what[AT(done[i])] = CHECK; stop[i] = QUEUED; goto settled
          fi
       :: CHECKS(e) && tx[i] == FAILED -> goto failed /* 25P02 */
#ifdef CHAINS
       :: e == UNHOLD && CANCELLED -> was_cancelled(); goto failed
#endif
       :: CHECKS(e) && tx[i] != FAILED ->
          if
          :: e == UNHOLD -> let_go()
          :: else
          fi;
          if
          :: wanted && !HAS(i) -> stop[i] = QUEUED; goto settled
          :: else -> lock_for_transaction(i); goto verdict
          fi
       :: e == BARE -> goto statement
       fi }

  :: atomic { stop[i] == QUEUED && CANCELLED -> was_cancelled(); goto failed }

  :: atomic { stop[i] == GRANTED ->
       e = what[AT(done[i])]; s = text[AT(done[i])]; f = fence[AT(done[i])]; ok = true;
verdict:
       stale = (f == STALE || f == VARIABLE && old[i]);
#ifdef SNAPSHOT
       if :: TAKES(e) && stop[i] == GRANTED -> stale = seen[i] :: else fi;
       seen[i] = false;
#endif
       stop[i] = BETWEEN;
       if
       :: CANCELLED -> was_cancelled(); goto failed /* the lock stays: the session's, or the failed transaction's */
       :: !stale && e == HOLD -> printf("  s%d: holds\n", i); goto answered
       :: !stale && e == JOINT -> printf("  s%d: holds, and goes on\n", i); goto statement
       :: stale && TAKES(e) ->
          printf("  s%d: hold refused\n", i);
#ifndef RAISE_KEEPS
          let_go();
#endif
          goto failed
       :: !stale && CHECKS(e) -> printf("  s%d: checked\n", i); goto statement
       :: stale && CHECKS(e) -> printf("  s%d: check refused\n", i); goto failed
       fi;
statement:
       if
       :: tx[i] == FAILED && s != COMMIT && s != ROLLBACK && s != ROLLBACK_TO && s != CHAIN -> goto failed
       :: tx[i] != FAILED && (s == WRITE || s == UNLOCKING) ->
#ifdef ROWS
          if
          :: row == 1 - i -> stop[i] = BLOCKED; goto settled
          :: else
          fi;
write:
          if :: row == 2 -> row = i; rowsub = savepoint[i] :: else fi;
#endif
          stale = (f == STALE || f == VARIABLE && old[i]);
          if
          :: savepoint[i] -> sub[i] = WORSE(sub[i], (stale -> OLD : CURRENT))
          :: else -> top[i] = WORSE(top[i], (stale -> OLD : CURRENT))
          fi;
          if :: s == UNLOCKING -> let_go() :: else fi;
          if
          :: tx[i] == IDLE && s == WRITE -> commit(); goto answered
          :: tx[i] == IDLE && s == UNLOCKING -> stop[i] = ENDING; goto settled
          :: else -> goto answered
          fi
       :: s == BEGIN && tx[i] != FAILED -> tx[i] = OPEN; goto answered
       :: s == COMMIT ->
          if
          :: tx[i] == OPEN -> commit()
          :: tx[i] == FAILED -> restore(); end_transaction()
          :: else
          fi;
          goto answered
       :: s == ROLLBACK -> restore(); end_transaction(); goto answered
#ifdef CHAINS
       :: s == CHAIN && tx[i] != IDLE ->
          if
          :: tx[i] == OPEN -> commit()
          :: tx[i] == OPEN && CANCELLED -> was_cancelled(); goto failed
          :: tx[i] == FAILED -> restore(); end_transaction()
          fi;
          tx[i] = OPEN; goto answered
       :: s == CHAIN && tx[i] == IDLE -> goto failed
#endif
       :: s == SAVEPOINT && tx[i] == OPEN -> savepoint[i] = true; goto answered
       :: s == RELEASE && tx[i] == OPEN && savepoint[i] ->
          savepoint[i] = false; top[i] = WORSE(top[i], sub[i]); sub[i] = NOTHING;
          xact[i] = (xact[i] > 0 -> 1 : 0);
#ifdef ROWS
          rowsub = (row == i -> false : rowsub);
#endif
          goto answered
       :: s == ROLLBACK_TO && tx[i] != IDLE && savepoint[i] -> undo_sub(); tx[i] = OPEN; goto answered
       :: (s == SAVEPOINT && tx[i] == IDLE) || (s == RELEASE && tx[i] != FAILED && !savepoint[i]) ||
          (s == ROLLBACK_TO && !savepoint[i]) -> goto failed
       :: (s == UNLOCK || s == EXECUTE) && tx[i] != FAILED -> let_go(); goto answered
       :: s == NAME_IT && tx[i] != FAILED -> goto answered
       :: s == SET && tx[i] != FAILED ->
          set[i] = (tx[i] != IDLE);
          if :: old[i] = false :: old[i] = true fi;
          goto answered
       :: s == SEAL && tx[i] != FAILED ->
          /* Its own locks don't conflict. Waiting is the takeover's part. */
          if
#ifdef OWN_LOCK
          :: tx[i] == IDLE && OTHERS && !wanted -> record()
#else
          :: tx[i] == IDLE && OTHERS && !wanted && !session[i] -> record()
#endif
          :: fail()
          fi;
          goto answered
#ifdef PREPARE_HELD
       :: s == PREPARE && tx[i] == OPEN && prepared[i] == NOTHING && xact[i] == 0 ->
          prepared[i] = WORSE(top[i], sub[i]); end_transaction(); goto answered
       :: s == PREPARE && (tx[i] == IDLE || tx[i] == OPEN && (prepared[i] != NOTHING || xact[i] > 0)) -> goto failed
       :: s == COMMIT_IT && tx[i] == IDLE -> judge(prepared[i]); prepared[i] = NOTHING; goto answered
       :: s == COMMIT_IT && tx[i] == OPEN -> goto failed
#endif
       :: else -> assert(false) /* all cases are above */
       fi;
       goto answered;
failed:
       fail();
answered:
       answer();
settled:
       settle() }
#ifdef ROWS
  :: atomic { stop[i] == BLOCKED && row == 2 ->
       e = what[AT(done[i])]; s = text[AT(done[i])]; f = fence[AT(done[i])]; ok = true; stop[i] = BETWEEN;
       goto write }
#endif
  :: atomic { stop[i] == ENDING -> ok = true; commit(); goto answered }
#ifndef LIVE
  /* Lost, or ended by anybody for any reason. */
  :: atomic { out[i] > 0 || HAS(i) || tx[i] != IDLE || may[i] -> die(); goto settled }
#endif
  od
}

/* Whether the hold that counts is one of this fence. Stale ones may be different. */
#ifdef OTHER_FENCE
#define COVERED(f) counts[i]
#else
#define COVERED(f) (counts[i] && held[i] == f)
#endif
#define OUTSIDE (out[i] == 0 && known[i] == IDLE)
#if defined(NAME_HOLDS)
#define MAY_HOLD (!chained[i])
#elif defined(CHAIN_HOLDS)
#define MAY_HOLD (!named[i])
#else
#define MAY_HOLD (!named[i] && !chained[i])
#endif

/* When a takeover waits, H has passed; without one nobody minds what is held. Then
 * an open transaction comes to its end, which is all that is asked of a client.
 * One that has no lock may as well be silent. */
#ifdef LIVE
#define RUNS (pause[i] != FROZEN)
#define TALKING (pause[i] == TALKS || pause[i] == QUIET && !OUTSIDE)
#ifdef STICKY_CHECK
#define GIVE_BACK_FIRST (OUTSIDE && may[i] && counts[i])
#else
#define GIVE_BACK_FIRST (OUTSIDE && may[i])
#endif
#ifdef NO_PAUSE
#define ONE_BY_ONE true
#else
#define ONE_BY_ONE (out[i] == 0 || TAKES(what[AT(0)]))
#endif
#define LEAVES (chained[i] && may[i]) /* a hold that the session is to be without */
#define MAY_SEND (!came && !LEAVES || (HAS(i) || !came) && !GIVE_BACK_FIRST && ONE_BY_ONE)
#define MUST_END (came && known[i] != IDLE)
#ifdef NO_TIMER
#define TIMER (pause[i] == TALKS)
#else
#define TIMER RUNS
#endif
#else
#define TIMER true
#define RUNS true
#define TALKING true
#define MAY_SEND true
#define MUST_END false
#endif

inline send(x, y, z) {
  what[AT(out[i])] = x; text[AT(out[i])] = y; fence[AT(out[i])] = z;
  out[i]++;
  printf("s%d: sends %d, statement %d, fence %d\n", i, x, y, z)
}

inline choose_fence() {
#ifdef COMMENTS
  if :: f = VARIABLE :: f = FRESH :: f = STALE fi
#else
  f = VARIABLE
#endif
}

/* The client and the proxy's half of its session. */
proctype proxy(byte i) {
end:
  do
  /* An answer. */
  :: atomic { done[i] > 0 && RUNS ->
       e = what[AT(0)]; ok = text[AT(0)]; known[i] = fence[AT(0)];
       done[i]--; out[i]--;
#if PIPE > 1
       for (n : 0 .. PIPE - 2) { what[AT(n)] = what[AT(n + 1)]; text[AT(n)] = text[AT(n + 1)]; fence[AT(n)] = fence[AT(n + 1)] };
#endif
       what[AT(PIPE - 1)] = 0; text[AT(PIPE - 1)] = 0; fence[AT(PIPE - 1)] = 0;
       if
#ifdef FAILURE_COUNTS
       :: TAKES(e) && !spoiled[i] -> counts[i] = true
#else
       :: TAKES(e) && ok && !spoiled[i] -> counts[i] = true; printf("s%d: counts\n", i)
#endif
#ifdef FORGETS
       :: TAKES(e) && !ok -> counts[i] = false; may[i] = false
#endif
       :: (e == BACK || e == UNHOLD) && ok -> counts[i] = false; may[i] = false
       :: else
       fi;
       spoiled[i] = spoiled[i] && !TAKES(e);
       settle() }

  /* An exchange of its own: the hold is given back. */
  :: atomic { out[i] < PIPE && may[i] && TIMER &&
#if defined(BACK_INSIDE)
       out[i] == 0 && known[i] != FAILED
#elif defined(BACK_BEHIND)
       known[i] == IDLE
#else
       OUTSIDE
#endif
       ->
       send(BACK, 0, 0);
#ifndef COUNTS_TO_THE_END
       counts[i] = false;
#endif
       settle() }

  /* Or it is taken, or taken anew. */
  :: atomic { out[i] < PIPE && MAY_HOLD && TALKING &&
#if defined(RETAKE_INSIDE)
       out[i] == 0 && known[i] != FAILED
#elif defined(RETAKE_BEHIND)
       known[i] == IDLE
#else
       OUTSIDE
#endif
       -> choose_fence();
       if
       :: send(HOLD, 0, f)
       :: !MUST_END && MAY_SEND -> send(JOINT, WRITE, f)
       fi;
       held[i] = f; may[i] = true; spoiled[i] = false; first[i] = false; fresh[i] = false;
#ifdef COUNTS_AT_ONCE
       counts[i] = true;
#else
       counts[i] = false;
#endif
       settle() }

  /* A group of the client. */
  :: atomic { out[i] < PIPE && TALKING && MAY_SEND ->
       if
       :: !MUST_END || fresh[i] -> s = WRITE
#ifdef BLOCKS
       :: !MUST_END -> s = BEGIN
       :: s = COMMIT
       :: s = ROLLBACK
#endif
#ifdef CHAINS
       :: !MUST_END || !fresh[i] || !may[i] -> s = CHAIN
#endif
#ifdef SAVEPOINTS
       :: !MUST_END -> if :: s = SAVEPOINT :: s = ROLLBACK_TO :: s = RELEASE fi
#endif
#ifdef UNLOCKS
       :: !MUST_END -> if :: s = UNLOCK :: s = UNLOCKING :: s = NAME_IT fi
       :: !MUST_END && named[i] -> s = EXECUTE
#endif
#ifdef SETS
       :: !MUST_END -> s = SET
#endif
#ifdef OWNSEALS
       :: !MUST_END -> s = SEAL
#endif
#ifdef PREPARE_HELD
       :: s = PREPARE :: s = COMMIT_IT
#endif
       fi;
       choose_fence();
       if
       :: s == BEGIN || s == COMMIT || s == CHAIN || s == ROLLBACK || s == ROLLBACK_TO || s == RELEASE || s == SET || s == PREPARE || s == COMMIT_IT ->
          e = BARE
#ifndef SAVEPOINT_BARE
       :: s == SAVEPOINT -> e = (first[i] -> BARE : CHECK)
#endif
#ifndef UNLOCK_BARE
       :: s == UNLOCK || s == UNLOCKING || s == NAME_IT -> e = CHECK
       :: s == UNLOCK && OUTSIDE -> e = BARE /* DISCARD ALL runs behind no check */
#endif
       :: else -> e = (COVERED(f) -> BARE : CHECK)
       fi;
#ifndef CHAIN_HOLDS
       if
       :: e == CHECK && fresh[i] && may[i] -> e = UNHOLD
       :: else
       fi;
#endif
       first[i] = (s == BEGIN && OUTSIDE);
       fresh[i] = (s == CHAIN);
       chained[i] = (chained[i] || s == CHAIN);
       send(e, s, f);
       if
#ifndef CHAIN_HOLDS
       :: s == CHAIN -> counts[i] = false; spoiled[i] = TAKES(what[AT(0)])
#endif
       :: s == UNLOCK || s == UNLOCKING || s == NAME_IT ->
#ifndef UNLOCK_COUNTS
          counts[i] = false;
#endif
#ifndef UNLOCK_UNSPOILED
          spoiled[i] = TAKES(what[AT(0)]);
#endif
          named[i] = named[i] || s == NAME_IT
       :: s == SET ->
#ifndef SET_COUNTS
          counts[i] = false;
#endif
#ifndef SET_UNSPOILED
          spoiled[i] = TAKES(what[AT(0)]);
#endif
          skip
       :: else
       fi;
       settle() }
#ifdef LIVE
  :: atomic { freezes > 0 && pause[i] == TALKS -> freezes--;
       if
       :: pause[i] = QUIET
#if defined(PREEMPT) || defined(FREEZE_INSIDE)
       :: pause[i] = FROZEN
#else
       :: tx[i] == IDLE && text[AT(0)] != BEGIN && text[AT(PIPE - 1)] != BEGIN -> pause[i] = FROZEN
#endif
       fi;
       printf("s%d: %d\n", i, pause[i]); settle() }
#endif
  od
}

#ifdef LIVE
inline leave_queue() { i = 0; wanted = false; serve_queue(); settle() }
#endif

/* One takeover after another. */
proctype sealer() {
  byte i;
end:
  atomic { true -> wanted = true; printf("a seal queues\n");
#ifdef LIVE
    came = true
#endif
  };
  do
  :: atomic { wanted && NOBODY ->
       record();
       wanted = false; serve_queue();
#ifdef LIVE
       came = false;
       for (EACH(j)) { work[j] = 0 };
#endif
       settle(); goto end }
#ifdef LIVE
  /* It looks round, ends a session, and comes back behind those who waited. */
  :: atomic { wanted && ENDS(0) -> i = 0; die(); leave_queue() }
#if SESSIONS > 1
  :: atomic { wanted && ENDS(1) -> i = 1; die(); leave_queue() }
#endif
  :: atomic { !wanted -> wanted = true; printf("a seal queues again\n");
       for (EACH(j)) { work[j] = 0 }; settle() }
#endif
  od
}

init {
  atomic {
#ifdef LIVE
    cancels = CANCELS; freezes = FREEZES;
#endif
    for (j : 0 .. SESSIONS - 1) {
      if :: old[j] = false :: old[j] = true fi;
      run backend(j); run proxy(j)
    };
    j = 0;
    run sealer()
  }
}
