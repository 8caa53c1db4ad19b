/*
 * A call whose body a worker runs: one call that may run once, two replicas, two worker processes. Each atomic block is one step
 * of the store, or the handling of one message. At any moment, up to FAULTS times in all, a connection is cut, a replica is
 * suspended for longer than its lease or restarted, or worker 0 is killed. Messages to a replica that were sent before a cut may
 * still arrive. `npm run test:spin` checks the model, and that each of these switches leads to an error:
 *   STALE_READ  a worker reads a former connection after it has opened the next one
 *   NO_MARK     the start is sent before the start mark is stored
 *   EARLY_ACK   a result is acknowledged before it is stored
 *   NO_FENCE    any replica that has a result writes it, owner or not, ended or not
 */
#define NW 2
#ifndef MC
#define MC 4
#endif
#define NC (NW*MC)
#define NONE 9
#ifndef FAULTS
#define FAULTS 3
#endif
#define AT(w,c) ((w)*MC + (c))
mtype = { PENDING, RUNNING, DONE, LOST };
mtype = { START, PROBE, ACK, GONE, HELLO, HELD, NOTHELD, RESULT };
/* The store: state of the call, its owner and fence; worker, connection and assignment of the start mark. */
mtype st = PENDING; byte owner = NONE; byte epoch = 0; byte aw = 0; byte ac = 0; byte tok = 0; bool lease = false;
/* Connections of a worker count from 1. `peer` is the replica at the other end. */
chan down[NC] = [3] of { mtype, byte };
chan up[NC] = [3] of { mtype, byte };
bool live[NC]; byte peer[NC];
byte last[NW]; bool alive[NW]; bool fin[NW];
byte faults = 0; byte entered = 0; byte finals = 0; bool finished = false;

#define HAS(w) (known[w] > 0 && live[AT(w,known[w])] && peer[AT(w,known[w])] == r)

inline end(s) { st = s; finals++; assert(finals <= 1) }
inline send(x, m, t) { if :: live[x] && len(down[x]) < 3 -> down[x]!m(t) :: !(live[x] && len(down[x]) < 3) -> skip fi }
inline take(x, w0, c0) { w = w0; c = c0; up[x]?m(t) }

proctype replica(byte r) {
  byte e = 0; byte known[NW];
  bool due = false; byte dw = 0; byte dc = 0; byte dt = 0; bool keep = false; byte kt = 0;
  mtype m = 0; byte t = 0; byte w = 0; byte c = 0; byte x = 0;
next: atomic { m = 0; t = 0; w = 0; c = 0; x = 0 };
end_idle: do
  :: atomic { st == PENDING && (owner == NONE || !lease) && (HAS(0) || HAS(1)) -> epoch++; e = epoch; owner = r; lease = true }
  /* No worker is connected here: the call waits without an owner. */
  :: atomic { st == PENDING && owner == r && epoch == e && !HAS(0) && !HAS(1) && !due -> owner = NONE; lease = false }
  :: atomic { st == PENDING && owner == r && epoch == e && lease && !due && (HAS(0) || HAS(1)) ->
       if :: HAS(0) -> dw = 0 :: HAS(1) -> dw = 1 fi;
       dc = known[dw]; dt = tok + 1;
#ifdef NO_MARK
       x = AT(dw,dc); send(x, START, dt); x = 0; due = true }
  :: atomic { due && st == PENDING && owner == r && epoch == e -> due = false; tok = dt; st = RUNNING; aw = dw; ac = dc }
  :: atomic { due && !(st == PENDING && owner == r && epoch == e) -> due = false }
#else
       tok = dt; st = RUNNING; aw = dw; ac = dc; due = true }
  :: atomic { due -> due = false; x = AT(dw,dc); send(x, START, dt); x = 0 }
#endif
  :: atomic { len(up[AT(0,1)]) > 0 && peer[AT(0,1)] == r -> take(AT(0,1),0,1) }; break
  :: atomic { len(up[AT(0,2)]) > 0 && peer[AT(0,2)] == r -> take(AT(0,2),0,2) }; break
  :: atomic { len(up[AT(0,3)]) > 0 && peer[AT(0,3)] == r -> take(AT(0,3),0,3) }; break
#if MC > 4
  :: atomic { len(up[AT(0,4)]) > 0 && peer[AT(0,4)] == r -> take(AT(0,4),0,4) }; break
#endif
  :: atomic { len(up[AT(1,1)]) > 0 && peer[AT(1,1)] == r -> take(AT(1,1),1,1) }; break
  :: atomic { len(up[AT(1,2)]) > 0 && peer[AT(1,2)] == r -> take(AT(1,2),1,2) }; break
  :: atomic { len(up[AT(1,3)]) > 0 && peer[AT(1,3)] == r -> take(AT(1,3),1,3) }; break
#if MC > 4
  :: atomic { len(up[AT(1,4)]) > 0 && peer[AT(1,4)] == r -> take(AT(1,4),1,4) }; break
#endif
  /* Started in a worker that is connected here, over a former connection or by a former run: ask the worker. */
  :: atomic { st == RUNNING && (known[aw] > ac || (known[aw] == ac && known[aw] > 0 && !(owner == r && epoch == e))) && live[AT(aw,known[aw])] && peer[AT(aw,known[aw])] == r &&
              len(down[AT(aw,known[aw])]) == 0 && len(up[AT(aw,known[aw])]) == 0 && !due ->
       x = AT(aw,known[aw]); send(x, PROBE, tok); x = 0 }
  /* The worker did not come back in time: its process is gone. */
  :: atomic { st == RUNNING && !alive[aw] -> end(LOST) }
#ifdef EARLY_ACK
  :: atomic { keep -> keep = false; if :: st == RUNNING && kt == tok && owner == r && epoch == e -> end(DONE) :: else fi }
#endif
  /* Faults: suspended for longer than the lease; killed and started again. */
  :: atomic { faults < FAULTS && owner == r && lease && (st == PENDING || st == RUNNING) -> faults++; lease = false }
  :: atomic { faults < FAULTS && (owner == r || due || known[0] + known[1] > 0) ->
       faults++; e = 0; due = false; keep = false; known[0] = 0; known[1] = 0;
       if :: owner == r -> lease = false :: else fi;
       x = 0; do :: x < NC -> if :: peer[x] == r -> live[x] = false; peer[x] = NONE;
              do :: len(up[x]) > 0 -> up[x]?m(t) :: len(up[x]) == 0 -> break od
            :: else fi; x++ :: else -> break od; m = 0; t = 0; x = 0 }
  od;
  atomic { x = AT(w,c);
    if
    :: m == RESULT ->
       if
#ifdef EARLY_ACK
       :: st == RUNNING && t == tok && owner == r && epoch == e -> keep = true; kt = t; send(x, ACK, t)
#else
#ifdef NO_FENCE
       :: t == tok -> end(DONE); send(x, ACK, t)
#else
       :: st == RUNNING && t == tok && owner == r && epoch == e -> end(DONE); send(x, ACK, t)
#endif
#endif
       :: st == DONE || st == LOST || t != tok -> send(x, GONE, t)
       :: else
       fi
    :: else ->
       if :: m == HELLO && c > known[w] -> known[w] = c :: else fi;
       if
       /* adopt_call: the worker has entered the body. */
       :: st == RUNNING && aw == w && c > ac && t == tok && m != NOTHELD -> epoch++; e = epoch; owner = r; lease = true; ac = c
       /* restart_call: the worker has not entered the body, and will not. */
       :: st == RUNNING && aw == w && ((m == HELLO && t != tok && c > ac) || (m == NOTHELD && t == tok && c >= ac)) && !due ->
          epoch++; st = PENDING; owner = NONE; lease = false
       :: else -> if :: t > 0 && m != NOTHELD && (st == DONE || st == LOST || t != tok) -> send(x, GONE, t) :: else fi
       fi
    fi };
  goto next
}

proctype worker(byte w) {
  byte held = 0; byte sent = 0; mtype m = 0; byte t = 0; byte x = 0;
next: atomic { m = 0; t = 0; x = 0 };
end_idle: do
  :: atomic { alive[w] && last[w] < MC-1 && !live[AT(w,last[w])] ->
       last[w]++; sent = 0; x = AT(w,last[w]); live[x] = true;
       if :: peer[x] = 0 :: peer[x] = 1 fi; up[x]!HELLO(held); x = 0 }
  :: atomic { alive[w] && len(down[AT(w,last[w])]) > 0 -> x = AT(w,last[w]); down[x]?m(t) }; break
#ifdef STALE_READ
  :: atomic { alive[w] && last[w] > 1 && len(down[AT(w,last[w]) - 1]) > 0 -> x = AT(w,last[w]) - 1; down[x]?m(t) }; break
#endif
  :: atomic { alive[w] && held > 0 && !fin[w] -> fin[w] = true; finished = true }
  :: atomic { alive[w] && held > 0 && fin[w] && sent != last[w] && live[AT(w,last[w])] && len(up[AT(w,last[w])]) < 3 ->
       sent = last[w]; x = AT(w,last[w]); up[x]!RESULT(held); x = 0 }
  /* Faults: the connection is cut, and a message that waits to be read is read or not; the process is killed. */
  :: atomic { alive[w] && faults < FAULTS && live[AT(w,last[w])] && last[w] < MC-1 -> faults++; live[AT(w,last[w])] = false }
  :: atomic { alive[w] && faults < FAULTS && w == 0 && last[w] > 0 -> faults++; alive[w] = false; held = 0; live[AT(w,last[w])] = false }
  od;
  atomic {
    if
    :: m == START -> if :: t != held -> entered++; assert(entered <= 1); held = t; fin[w] = false; sent = 0 :: else fi
    :: m == PROBE -> if :: live[x] && len(up[x]) < 3 -> if :: t == held -> up[x]!HELD(t) :: else -> up[x]!NOTHELD(t) fi
                        :: !(live[x] && len(up[x]) < 3) -> skip fi
    :: else -> if :: t == held -> held = 0; fin[w] = false :: else fi
    fi };
  goto next
}

/* When nothing can happen any more, the call has ended, and the result of a living worker is the one that is stored. */
proctype monitor() {
  timeout -> assert(st == DONE || st == LOST);
  assert(!(finished && st == LOST && alive[aw]));
  assert(!(st == DONE && !finished))
}

init { atomic { byte i = 0; do :: i < NC -> peer[i] = NONE; i++ :: else -> break od; i = 0; alive[0] = true; alive[1] = true;
  run replica(0); run replica(1); run worker(0); run worker(1); run monitor() } }
