import type { OptionTable } from "./options.ts";

/** The kinds of operands of a program. */
export type Operands =
  | "text"
  | "look"
  | "may"
  | "read"
  | "change"
  /** Files that are read, and changed or replaced. */
  | "rewrite"
  | "write"
  /** A pattern or program text first, unless an option of `pattern` gives it; then files that are read. */
  | "pattern"
  /** Files that are read, then one that is written. */
  | "copy"
  /** The same, but the files that are read are removed. */
  | "move"
  /** A mode or owner first, then files that are changed. */
  | "mode"
  /** A file that is read, then one that is written. */
  | "filter"
  /** A file that is written, then files that are read. */
  | "archive"
  /** Names of targets, and variables of the build. */
  | "targets"
  /** Web addresses. */
  | "address";

/** The known effects of a program. */
export interface Program extends OptionTable {
  operands: Operands;
  /** An option that is not listed turns an allow into an ask. */
  strict?: true;
  /** Options that carry the pattern, in place of the first operand. */
  pattern?: string;
  /** Reads directories and all files below them. */
  walks?: Walks;
}

/** The way in which a program walks directories. */
export interface Walks {
  /** The options with which it walks; absent: always. */
  with?: string;
  /** The options with which it includes names that begin with a dot; absent: always. */
  hiddenWith?: string;
  /** The options with which it follows links. */
  linksWith?: string;
  /** The options that limit it to files of certain names, unless an option of `except` is used too. */
  onlyOf?: string;
  except?: string;
  /** The options that name directories to skip. */
  notInto?: string;
  /** Without an operand it walks the current directory. */
  here?: true;
}

const compiler: Program = {
  operands: "read",
  write: "-o",
  run: "-wrapper -specs --specs -fplugin -B -Xclang -load -x",
};

const rgrepWalks: Walks = {
  linksWith: "-R --dereference-recursive",
  onlyOf: "--include",
  except: "--exclude --exclude-from",
  notInto: "--exclude-dir",
  here: true,
};

const grepWalks: Walks = { ...rgrepWalks, with: "-r -R --recursive --dereference-recursive -d --directories" };

/**
 * Programs by name. Lists the options that take a value, which would otherwise count as an operand, and those with effects
 * beyond the purpose of the program; for `strict` programs also all harmless ones.
 */
export const programs: ReadonlyMap<string, Program> = new Map(
  Object.entries<Program>({
    // Programs that only print.
    ":": { operands: "text" },
    arch: { operands: "text" },
    basename: { operands: "text" },
    dirname: { operands: "text" },
    date: { operands: "text", read: "-f --file", look: "-r --reference", run: "-s --set", text: "-d --date" },
    echo: { operands: "text" },
    exit: { operands: "text" },
    expr: { operands: "text" },
    false: { operands: "text" },
    groups: { operands: "text" },
    id: { operands: "text" },
    kill: { operands: "text" },
    nproc: { operands: "text" },
    printf: { operands: "text", run: "-v" },
    ps: { operands: "text" },
    pwd: { operands: "text" },
    seq: { operands: "text" },
    sleep: { operands: "text" },
    tr: { operands: "text" },
    true: { operands: "text" },
    type: { operands: "text" },
    uname: { operands: "text" },
    uptime: { operands: "text" },
    which: { operands: "text" },
    whoami: { operands: "text" },

    // Programs that look at names and kinds.
    "[": { operands: "look", run: "-v -R" },
    df: { operands: "look" },
    du: {
      operands: "look",
      text: "-d --max-depth -B -t --threshold --exclude",
      read: "-X --exclude-from",
      run: "--files0-from",
    },
    file: { operands: "read", run: "-C --compile -f --files-from -m --magic-file -z -Z" },
    ls: { operands: "look", text: "-I --ignore -w --width -T --tabsize --hide --block-size" },
    readlink: { operands: "look" },
    realpath: { operands: "look", look: "--relative-to --relative-base" },
    stat: { operands: "look", text: "-c --format --printf" },
    test: { operands: "look", run: "-v -R" },
    tree: {
      operands: "look",
      text: "-L -P -I --charset --filelimit --sort",
      write: "-o",
      run: "--fromfile -R --gitfile",
    },

    // Programs that read files and print.
    base64: { operands: "read", text: "-w --wrap" },
    cat: { operands: "read" },
    cksum: { operands: "read", run: "-c --check" },
    cmp: { operands: "read", text: "-n -i --bytes" },
    column: { operands: "read", text: "-s -o -N -c" },
    comm: { operands: "read" },
    cut: { operands: "read", text: "-d -f -c -b --delimiter --fields --output-delimiter" },
    diff: {
      operands: "read",
      text: "-U -C -W -I -x -F --label -L --exclude --width --ignore-matching-lines",
      maybe: "--color --unified --context",
      read: "-X --exclude-from --from-file --to-file",
      run: "-l --paginate",
      walks: { with: "-r --recursive", linksWith: "-r --recursive" },
    },
    expand: { operands: "read", text: "-t" },
    fmt: { operands: "read", text: "-w" },
    fold: { operands: "read", text: "-w" },
    head: { operands: "read", text: "-n -c --lines --bytes" },
    hexdump: { operands: "read", text: "-n -s -e", read: "-f" },
    join: { operands: "read", text: "-t -1 -2 -j -o -e -a -v" },
    md5sum: { operands: "read", run: "-c --check" },
    nl: { operands: "read", text: "-b -n -w -s -v -i" },
    od: { operands: "read", text: "-A -t -N -j", maybe: "-w" },
    paste: { operands: "read", text: "-d" },
    rev: { operands: "read" },
    sha1sum: { operands: "read", run: "-c --check" },
    sha256sum: { operands: "read", run: "-c --check" },
    sha512sum: { operands: "read", run: "-c --check" },
    strings: { operands: "read", text: "-n -t -e" },
    tac: { operands: "read", text: "-s" },
    tail: { operands: "read", text: "-n -c -s --lines --bytes --pid --sleep-interval" },
    wc: { operands: "read", run: "--files0-from" },
    egrep: grep(),
    fgrep: grep(),
    grep: grep(),
    rgrep: { ...grep(), walks: rgrepWalks },
    jq: {
      operands: "pattern",
      // Each takes two words, and the pattern may be either.
      pattern: "--arg --argjson --slurpfile --rawfile --argfile",
      text: "--arg --argjson --slurpfile --rawfile --argfile --indent",
      run: "-f --from-file -L",
    },
    rg: {
      operands: "pattern",
      pattern: "-e --regexp -f --file --files --type-list",
      strict: true,
      flag: "-n --line-number -N --no-line-number -i --ignore-case -s --case-sensitive -S --smart-case -w --word-regexp -x --line-regexp -v --invert-match -c --count --count-matches -l --files-with-matches --files-without-match -o --only-matching -q --quiet -F --fixed-strings -P --pcre2 -U --multiline --multiline-dotall -H --with-filename -I --no-filename -h --help -V --version --files --type-list --hidden -. --no-ignore --no-ignore-vcs --no-ignore-parent --no-ignore-dot --no-messages -u --unrestricted -uu -uuu --column --no-column --heading --no-heading --json --stats --trim --vimgrep -p --pretty --passthru -a --text -0 --null --block-buffered --line-buffered --crlf --no-config --no-unicode --glob-case-insensitive --one-file-system --debug --trace --sort-files --no-pcre2-unicode --byte-offset -b --include-zero --mmap --no-mmap --stop-on-nonmatch --auto-hybrid-regex --no-require-git",
      text: "-e --regexp -g --glob --iglob -t --type -T --type-not -A --after-context -B --before-context -C --context -m --max-count -M --max-columns -r --replace -j --threads -d --max-depth --max-filesize --color --colors --sort --sortr --engine -E --encoding --context-separator --field-match-separator --path-separator --dfa-size-limit --regex-size-limit --type-add --hyperlink-format",
      read: "-f --file --ignore-file",
      run: "--pre --pre-glob --hostname-bin -z --search-zip -L --follow",
      walks: {
        hiddenWith: "--hidden -. -u -uu -uuu --unrestricted -g --glob --iglob",
        linksWith: "-L --follow",
        here: true,
      },
    },
    ag: {
      operands: "pattern",
      run: "--pager -p --path-to-ignore",
      walks: { hiddenWith: "--hidden -u --unrestricted -U", linksWith: "-f --follow", here: true },
    },
    ack: { operands: "pattern", run: "--pager --ackrc", walks: { here: true } },
    sort: {
      operands: "read",
      strict: true,
      flag: "-b -d -f -g -i -M -h -n -R -r -V -c -C -m -s -u -z --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort --ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort --reverse --version-sort --debug --merge --stable --unique --zero-terminated --help --version",
      maybe: "--check",
      text: "-k --key -t --field-separator -S --buffer-size --parallel --batch-size --sort",
      write: "-o --output -T --temporary-directory",
      run: "--compress-program --files0-from --random-source",
    },
    uniq: { operands: "filter", text: "-f -s -w --skip-fields --skip-chars --check-chars" },
    xxd: { operands: "filter", text: "-c -g -l -s -o -n -cols -len -seek" },
    less: {
      operands: "read",
      strict: true,
      flag: "-N -S -R -r -F -X -i -I -n -e -E -M -m -q -s -g",
      run: "-o -O -k -t -T -p +",
    },
    more: { operands: "read", strict: true, flag: "-d -f -l -p -c -s -u", run: "+" },
    man: {
      operands: "text",
      strict: true,
      flag: "-a -f -k -w -W -K -i -I --all --whatis --apropos --where --help",
      text: "-s -S -L",
    },

    // Programs that change files, as their name says: a rule for them covers changes. New files need an edit rule too.
    bzip2: { operands: "rewrite" },
    chgrp: { operands: "mode", look: "--reference" },
    chmod: { operands: "mode", look: "--reference" },
    chown: { operands: "mode", look: "--reference", text: "--from" },
    cp: {
      operands: "copy",
      write: "-t --target-directory",
      text: "-S --suffix",
      walks: { with: "-r -R -a --recursive --archive", linksWith: "-L --dereference" },
    },
    bunzip2: { operands: "rewrite" },
    gunzip: { operands: "rewrite", text: "-S --suffix" },
    gzip: { operands: "rewrite", text: "-S --suffix" },
    install: {
      operands: "copy",
      write: "-t --target-directory",
      text: "-m -o -g -S --mode --owner --group",
      run: "--strip-program",
    },
    ln: { operands: "copy", write: "-t --target-directory", text: "-S --suffix" },
    mkdir: { operands: "change", text: "-m --mode" },
    mkfifo: { operands: "change", text: "-m --mode" },
    mv: { operands: "move", write: "-t --target-directory", text: "-S --suffix" },
    rm: { operands: "change" },
    rmdir: { operands: "change" },
    shred: { operands: "change", text: "-n -s", run: "--random-source" },
    shuf: { operands: "read", text: "-n -i --head-count --input-range", write: "-o --output", run: "--random-source" },
    tee: { operands: "write" },
    touch: { operands: "change", text: "-d -t --date --time", look: "-r --reference" },
    truncate: { operands: "write", text: "-s --size", look: "-r --reference" },
    unlink: { operands: "change" },
    xz: { operands: "rewrite", run: "--files --files0" },
    zstd: { operands: "rewrite", write: "-o", run: "--filelist" },
    zip: {
      operands: "archive",
      strict: true,
      flag: "-r -q -j -u -9 -1 -y -X",
      text: "-x -i",
      walks: { with: "-r", linksWith: "-r" },
    },

    // Programs that reach other machines.
    curl: {
      operands: "address",
      strict: true,
      flag: "-s --silent -S --show-error -f --fail --fail-with-body -L --location -i --include -I --head -v --verbose -g --globoff -G --get -k --insecure -4 --ipv4 -6 --ipv6 -# --progress-bar -N --no-buffer --compressed --http1.1 --http2 --http3 --tlsv1.2 --tlsv1.3 -Z --parallel --no-progress-meter -h --help -V --version --raw --tcp-nodelay --path-as-is --post301 --post302 -a --retry-connrefused --retry-all-errors",
      text: "-X --request -A --user-agent -e --referer -m --max-time --connect-timeout --retry --retry-delay --retry-max-time -u --user -r --range --max-redirs --limit-rate --oauth2-bearer --max-filesize -z --time-cond --keepalive-time -y -Y --data-raw --form-string",
      data: "-H --header -d --data --data-ascii --data-binary --data-urlencode --json -F --form --url-query",
      read: "-T --upload-file --cacert --capath -E --cert --key --etag-compare",
      write:
        "-o --output -D --dump-header -c --cookie-jar --trace --trace-ascii --stderr --libcurl --hsts --alt-svc --etag-save --output-dir",
      run: "-K --config -O --remote-name --remote-name-all -J --remote-header-name -x --proxy --preproxy --socks4 --socks5 --resolve --connect-to --next -: --url --netrc -n --netrc-file --netrc-optional --unix-socket --abstract-unix-socket --doh-url --dns-servers -w --write-out -q --disable --proto-default -b --cookie --engine --interface --variable --ipfs-gateway --location-trusted",
    },
    wget: {
      operands: "address",
      strict: true,
      flag: "-q --quiet -nv --no-verbose -v --verbose --spider -S --server-response -4 -6 -c --continue --no-check-certificate -h --help -V --version -nc --no-clobber",
      text: "-T --timeout -t --tries -U --user-agent --header -w --wait --limit-rate --method --post-data --body-data",
      read: "--post-file --body-file --ca-certificate --certificate --private-key",
      write: "-O --output-document -o --output-file -a --append-output -P --directory-prefix --save-cookies",
      run: "-e --execute -i --input-file --config --use-askpass --load-cookies -r --recursive -m --mirror --rejected-log --warc-file",
    },
    ssh: {
      operands: "text",
      strict: true,
      flag: "-4 -6 -T -t -q -v -n -x -a -C",
      text: "-p -l",
      read: "-i",
      write: "-E",
      run: "-o -F -J -L -R -D -W -S -O -M -N -f -A -X -Y -I -w -B -b",
    },
    scp: {
      operands: "copy",
      strict: true,
      flag: "-r -p -q -v -C -4 -6 -B",
      text: "-P -l -c",
      read: "-i",
      run: "-S -o -F -J -D -3",
      walks: { with: "-r", linksWith: "-r" },
    },
    sftp: { operands: "may", strict: true },
    rsync: {
      operands: "copy",
      strict: true,
      flag: "-a -v -r -z -n -h -u -t -p -l -q -c -W -x -H -P --archive --verbose --recursive --compress --dry-run --progress --stats --checksum --update --partial --itemize-changes -i --human-readable --help --version",
      text: "--exclude --include --bwlimit --max-size --min-size --timeout --port",
      read: "--exclude-from --include-from --password-file",
      write: "--log-file --backup-dir --temp-dir --partial-dir",
      run: "-e --rsh --rsync-path --files-from --delete --remove-source-files --daemon --config -L -K -s",
      walks: { with: "-a -r --archive --recursive", linksWith: "-L --copy-links" },
    },

    // Programs that run what a project defines.
    cc: compiler,
    clang: compiler,
    "clang++": compiler,
    "g++": compiler,
    gcc: compiler,
    make: {
      operands: "targets",
      strict: true,
      flag: "-B -k -n -s -w -d -q -i -S -t --always-make --keep-going --dry-run --silent --quiet --no-print-directory --print-directory --help --version",
      maybe: "-j --jobs -l --load-average -O --output-sync",
      look: "-C --directory",
      run: "-f --file --makefile -I --include-dir --eval -E -e --environment-overrides -o -W",
    },
    cargo: { operands: "may", run: "--config -C -Z --manifest-path", write: "--target-dir --artifact-dir --out-dir" },
    go: {
      operands: "may",
      run: "-exec -toolexec -overlay -modfile -C -vettool -ldflags -gcflags -asmflags -gccgoflags -pkgdir -compiler -mod --exec --toolexec --overlay --modfile --vettool --ldflags --gcflags --asmflags -w",
      write: "-o -coverprofile -cpuprofile -memprofile -blockprofile -mutexprofile -trace -outputdir",
    },
    yarn: {
      operands: "may",
      run: "--cwd --use-yarnrc --script-shell --modules-directory --global-directory --cache-directory --registry",
    },
  }),
);

function grep(): Program {
  return {
    operands: "pattern",
    pattern: "-e --regexp -f --file",
    text: "-e --regexp -A -B -C -m -d -D --after-context --before-context --context --max-count --include --exclude --exclude-dir --label --binary-files --directories --devices",
    maybe: "--color --colour",
    read: "-f --file --exclude-from",
    walks: grepWalks,
  };
}

/** Variables that only change the format of output. */
export function isHarmlessVariable(name: string): boolean {
  return /^(CI|NO_COLOR|FORCE_COLOR|LANG|LC_[A-Z]+|TZ|NODE_ENV)$/.test(name);
}

/** Shell commands that change the meaning of the rest of a line. */
export const changesShell: ReadonlySet<string> = new Set(
  "alias bg bind builtin caller compgen complete compopt declare dirs disown enable exec export fc fg getopts hash history let local logout mapfile popd pushd read readarray readonly return set shift shopt source . suspend trap typeset ulimit umask unalias unset wait".split(
    " ",
  ),
);
