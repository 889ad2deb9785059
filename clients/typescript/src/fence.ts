/** A fence, and the forms in which a statement, a transaction or a session carries it. */
export class Fence {
  /** @internal */
  constructor(
    /** Such as `orders=34`. */
    readonly fence: string,
  ) {}

  /** The fence as an SQL comment. A lease's stays the same when the lease has ended: a statement
   * without a comment would not be refused. */
  comment(): string {
    return `/*wirefence.token='${this.fence}'*/`;
  }

  /** The statement that makes the open transaction carry the fence. */
  setLocal(): string {
    return `SET LOCAL wirefence.token = '${this.fence}'`;
  }

  /** The fence for the connection parameter `options`. */
  options(): string {
    return `-c wirefence.token=${this.fence}`;
  }

  /** Throws a LeaseLost if the fence is that of a lease, and that has ended. */
  check(): void {}
}

type Column = bigint | number | string;

/** The key of a row: the value of its column, or those of its columns. */
export type Key = Column | readonly Column[];

/** A claim's number, or its text as PostgreSQL writes it. A Date has lost its microseconds. */
export type ClaimValue = bigint | number | string;

const maxRows = 10_000;
const maxKey = 1024; // bytes
const maxFence = 2 ** 20; // bytes

/** The claims by which a worker has rows, such as jobs of a queue: docs/howto/queue.md. */
export class Claims extends Fence {
  /** Takes the rows' class, as declared, and a key and a claim for each row, 1 to 10,000. */
  constructor(className: string, claims: Iterable<readonly [Key, ClaimValue]>) {
    if (!/^[a-z_][a-z0-9_]{0,62}$/.test(className)) throw new RangeError(`${JSON.stringify(className)} can't be a class of rows`);
    const rows = new Map<string, bigint>();
    for (const [key, claim] of claims) {
      const text = encode(key);
      const number = readClaim(claim);
      if ((rows.get(text) ?? number) !== number) throw new RangeError(`row ${className}(${text}) has two claims`);
      rows.set(text, number);
    }
    super([...rows.keys()].sort().map((key) => `${className}(${key})=${rows.get(key)}`).join());
    if (rows.size < 1 || rows.size > maxRows || this.fence.length > maxFence) {
      throw new RangeError(`${rows.size} rows and ${this.fence.length} bytes make no fence`);
    }
  }
}

/** Returns a key as it stands in a fence. */
function encode(key: Key): string {
  const columns = Array.isArray(key) ? key : [key];
  const text = columns.map((column) => encodeColumn(column)).join(":");
  if (text.length < 1 || text.length > maxKey) throw new RangeError(`a key has ${text.length} bytes, must have 1 to ${maxKey}`);
  return text;
}

function encodeColumn(column: Column): string {
  if (typeof column === "number" ? !Number.isSafeInteger(column) : !["bigint", "string"].includes(typeof column)) {
    throw new RangeError(`${column} can't be a key: its columns are a string, a bigint or a safe integer`);
  }
  const text = String(column);
  if (text === "" || text.includes("\0")) throw new RangeError("a key is empty, or has a NUL");
  const percent = (c: string): string => `%${c.charCodeAt(0).toString(16).toUpperCase()}`;
  return encodeURIComponent(text).replace(/[!~*'()]/g, percent).replaceAll("%2F", "/");
}

/** Returns a resource's name as it stands in a fence. @internal */
export function encodeResource(resource: string): string {
  return encodeColumn(resource).replaceAll("%3A", ":");
}

function readClaim(claim: ClaimValue): bigint {
  const exact = typeof claim === "number" ? Number.isSafeInteger(claim) : typeof claim === "bigint" || (typeof claim === "string" && /^(0|-?[1-9][0-9]{0,18})$/.test(claim));
  if (!exact || BigInt(claim) !== BigInt.asIntN(64, BigInt(claim))) throw new RangeError(`${claim} can't be a claim`);
  return BigInt(claim);
}
