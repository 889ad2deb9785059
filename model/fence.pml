/*
 * How a lease is granted and how a write is judged, small enough for spin to try
 * every order in which it may happen. README.md says how to run it.
 *
 * Left out, which is no loss: the store's state between two scripts, since lease and counter may
 * become anything right before each; holders' clocks, since each granted token gets a writer that
 * looks at none and begins transactions for ever; BEGIN and the client's statements, of which others
 * see nothing until the commit; and the lock's queue, in which a writer may overtake a waiting seal
 * here, and can't in PostgreSQL.
 *
 * A step is atomic here only where nobody could come between in the real thing
 * (a Lua script, a lock's grant, the moment of a commit), or see that he had.
 *
 * What stands for what: acquire_script and raise_script for lockclient/redis/acquire.lua and
 * raise.lua, client up to seal for Client.win, seal to `exclusive = false` for wirefence.seal
 * and lock_exclusive, refused for Client.seal and Client.higher, failed for Client.giveBack,
 * an expired lease or a crash, writer for wirefence.check within a transaction, stuck and
 * takers for a client that sends nothing more and preempt_after, last_token for the row of
 * resource_locks, shared and exclusive for the advisory lock. A stall needs no step: a
 * process may take its next step at any time.
 *
 * Defines that break the protocol; each must make spin find an error:
 *   NOSEAL     an acquire returns what the store counted, unsealed
 *   NOLOCK     the check reads last_token without the resource's lock
 *   SEALEQUAL  a seal takes a token that is the last one already
 *   NOPREEMPT  a seal waits for older transactions and ends none
 *   NOIDENTITY a row counts on whatever server it is
 *   NOJUMP     the first seal behind a promotion goes on from the last token
 * PROMOTION lets a standby take over once that lacks the last commits.
 * Defines that leave a property out: NO_I1, NO_I2, NO_I3.
 */

#define GRANTS 3 /* acquires that return a token */
#ifdef PROMOTION
#define TOKENS 2 /* the highest token that the first server may have granted */
#define ABOVE 3  /* what is above them all */
#define COUNTED (timeline == 0 -> TOKENS - 1 : ABOVE + 1)
#else
#define TOKENS 5 /* the highest token: two more, for grants that get lost on the way */
#define COUNTED (TOKENS - 1)
#endif

/* The lease store, as the holder's number and the counter. */
#define FREE 0
#define GONE 3 /* held by somebody who crashed or was never here */
byte lease;
byte counter;

/* PostgreSQL: the row of wirefence.resource_locks as committed (0: none); the
 * resource's advisory lock, and how many are queued for it exclusively. */
byte last_token;
byte shared;    /* a bit for each writer */
bool exclusive;
byte takers;

/* Which server judges, and under which the row was sealed. `mine` is the one that a
 * connection leads to: when it is no more, neither are its locks, and what was open there
 * can't commit. */
#ifdef PROMOTION
byte timeline;
byte sealed_under;
#define MINE byte mine;
#define CONNECT mine = timeline
#define LIVE (mine == timeline)
#define SEALED sealed_under = timeline
#else
#define MINE
#define CONNECT skip
#define LIVE true
#define SEALED skip
#endif
#if defined(PROMOTION) && !defined(NOIDENTITY)
#define FORMER (sealed_under != timeline)
#else
#define FORMER false
#endif

/* What has happened, which only the properties read. */
byte grants;
short granted;  /* a bit for each token that an acquire has returned */
byte returned;  /* the highest of them */
byte committed; /* the token of the last fenced commit */

/* How a seal compares. It is negated where an else would do, because spin takes an
 * else only if no other way is open, and to fail is always one. */
#ifdef SEALEQUAL
#define LOWER <
#else
#define LOWER <=
#endif

#define BIT(n) (1 << (n))

/* I1: tokens of committed fenced transactions never go down.
 * I2: after an acquire has returned a token, none that is lower commits.
 * I3: no two acquires return the same token.
 * At a commit `token` is the transaction's, at a return the grant's. */
inline hold_at_commit() {
#ifndef NO_I1
  assert(committed <= token); /* Evidence: I1 */
#endif
#ifndef NO_I2
  assert(returned <= token); /* Evidence: I2 */
#endif
  committed = token
}

inline hold_at_return() {
#ifndef NO_I3
  assert((granted & BIT(token)) == 0); /* Evidence: I3 */
#endif
  granted = granted | BIT(token);
  returned = (token > returned -> token : returned);
  grants++
}

/* What befalls the store, as often as it likes: a lease expires; a restart, a
 * failover, a restored copy or a split makes lease and counter any that they ever
 * were, or never were. Nobody notices before he asks the store, so it is enough
 * that it happens right before each script. */
inline misfortune() {
  if
  :: lease = FREE
  :: lease = GONE
  :: lease = 1
  :: lease = 2
  fi;
  select(counter : 0 .. COUNTED)
}

/* Since the next script begins with a misfortune, what this one left is of no
 * account. Forgetting it saves states. */
inline forget() {
  lease = FREE;
  counter = 0
}

/* acquire.lua: `token` is the counted one, or 0 if another holds the lease. */
inline acquire_script() {
  misfortune();
  if
  :: lease == FREE || lease == me ->
     counter++;
     lease = me;
     token = counter;
     printf("client %d: wins the lease, counted token %d\n", me, token)
  :: else -> token = 0
  fi;
  forget()
}

/* raise.lua */
inline raise_script() {
  misfortune();
  counter = (counter < token -> token : counter);
  forget()
}

/* Whoever writes with one granted token: the holder, what is left of him when his
 * lease is another's, and the statements in the network when he has crashed. He
 * looks at no clock and no lease and waits wherever he likes for as long as he
 * likes. Transaction after transaction, until he stops. */
proctype writer(byte me; byte token) {
  MINE
  do
  :: break
  :: /* BEGIN shows nobody anything. wirefence.check takes the lock until the
        transaction ends ... */
#ifdef NOSEAL
     /* (Nothing is sealed: a token is recorded by its first use, under the
        exclusive lock.) */
     atomic { !exclusive && shared == 0 -> exclusive = true; CONNECT };
#elif !defined(NOLOCK)
     atomic { !exclusive -> shared = shared | BIT(me); CONNECT };
#endif
     /* ... then reads the row, by a snapshot that is younger than the lock. */
     if
#ifdef NOSEAL
     :: atomic { token >= last_token -> printf("writer %d: checked with token %d\n", me, token) }
#else
     :: atomic { LIVE && !FORMER && token == last_token -> printf("writer %d: checked with token %d\n", me, token) }
#endif
     :: else -> goto ended /* WF001 */
     fi;
     /* The client's write shows nobody anything. Then ... */
     if
     :: atomic { /* COMMIT: the moment from which others see it */
          LIVE -> printf("writer %d: commits with token %d\n", me, token);
          hold_at_commit();
#ifdef NOSEAL
          last_token = token
#endif
        }
     :: goto ended /* ROLLBACK, a lost connection, pg_terminate_backend */
     :: atomic { true -> printf("writer %d: stuck\n", me); goto stuck } /* never says another word */
     fi;
ended:
     /* PostgreSQL lets go of locks after the commit can be seen. */
#ifdef NOSEAL
     exclusive = false
#else
     atomic {
       if
       :: LIVE -> shared = shared & ~BIT(me)
       :: !LIVE
       fi
     }
#endif
  od;
  goto over;

stuck:
  /* Only a seal that has waited for preempt_after gets this one out of its way;
   * any other that it ends took "goto ended". To be stuck for ever is a valid end
   * for the writer. For a client in the queue it isn't. */
end_stuck:
#ifdef NOPREEMPT
  false;
#else
  takers > 0 || !LIVE;
#endif
  goto ended;
over:
  skip
}

/* A lock client. Each round is another holder: what is kept of a crashed one is
 * nothing, and of an earlier one only its writer. */
proctype client(byte me) {
  byte token;
  MINE

end_waiting:
  do
  :: grants < GRANTS ->
     atomic { acquire_script() };
     if
     :: token == 0 -> goto failed
     :: token > 0
     fi;
#ifndef NOSEAL
seal:
     /* wirefence.seal looks at the row without a lock. */
     if
     :: goto failed /* crashed, out of time, or an error */
#ifdef PROMOTION
     :: atomic { FORMER -> CONNECT }; goto renumber
#endif
     :: !FORMER && token LOWER last_token -> goto refused
     :: atomic {
          !FORMER && !(token LOWER last_token) -> takers++; CONNECT;
          printf("client %d: queues to seal token %d\n", me, token)
        }
     fi;
     /* lock_exclusive. Nobody gives up in the queue: to get the lock and fail
      * then is the same to all others. */
     atomic {
       if
       :: LIVE && !exclusive && shared == 0 -> exclusive = true; takers--
       :: LIVE && token LOWER last_token -> takers--; goto refused /* superseded */
       :: !LIVE -> goto failed
       fi
     };
     /* The row is changed only if it is still lower. Nobody sees that before the
      * commit, and nobody else can change it meanwhile. */
     if
     :: atomic { LIVE -> exclusive = false; goto failed } /* rolled back */
     :: atomic { LIVE && token LOWER last_token -> exclusive = false; goto refused }
     :: atomic {
          LIVE && !(token LOWER last_token) -> last_token = token; SEALED;
          printf("client %d: sealed token %d\n", me, token)
        }
     :: !LIVE -> goto failed
     fi;
     atomic { /* after the commit can be seen */
       if
       :: LIVE -> exclusive = false
       :: !LIVE
       fi
     };
#endif
     if
     :: goto failed /* crashed when all was done but the telling, or too late */
     :: atomic {
          grants < GRANTS -> printf("client %d: is granted token %d\n", me, token);
          hold_at_return();
          run writer(grants - 1, token)
        }
     fi;
     /* Now it renews the lease, releases it, finds it lost or crashes. That
      * changes only the store, which changes as it likes anyway. */
     goto failed;

#ifdef PROMOTION
renumber:
     /* Grants may be lost: the last token moves above them all, and is nobody's. */
     atomic {
       if
       :: LIVE && !exclusive && shared == 0 && FORMER ->
#ifdef NOJUMP
          last_token = last_token + 1;
#else
          last_token = (last_token < ABOVE -> ABOVE : last_token + 1);
#endif
          SEALED;
          printf("client %d: moves the last token to %d\n", me, last_token)
       :: LIVE && !FORMER
       :: !LIVE -> goto failed
       fi
     };
     goto refused;
#endif
#ifndef NOSEAL
refused:
     /* LastToken, raise.lua, and acquire.lua again by the same holder. There are
      * 8 rounds of this; here there are as many as it likes. */
     if
     :: goto failed
     :: atomic { true -> token = (token > last_token -> token : last_token) }
     fi;
     atomic { raise_script() };
     atomic { acquire_script() };
     if
     :: token == 0 -> goto failed
     :: token > 0 -> goto seal
     fi;
#endif
failed:
     token = 0
  od
}

#ifdef PROMOTION
/* The primary is gone, and what it had open with it. The standby has what was committed up
 * to some moment: the row is any that it ever was or might have been, and later fenced
 * commits are lost with it. */
active proctype failover() {
  byte kept;

end_never:
  atomic {
    true ->
    select(kept : 0 .. TOKENS);
    last_token = (kept < last_token -> kept : last_token);
    committed = (committed > last_token -> last_token : committed);
    shared = 0;
    exclusive = false;
    takers = 0;
    timeline = 1;
    printf("a standby is promoted, where the last token is %d\n", last_token)
  }
}
#endif

init {
  atomic {
    run client(1);
    run client(2)
  }
}
