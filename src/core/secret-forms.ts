/** Finds secrets that their form shows: private keys, tokens of known services, JSON Web Tokens. No branch begins with a repetition. */
export const secretForms =
  /-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:gh[pousr]_|github_pat_|glpat-|npm_|sk-|xox[abprs]-|AKIA|ASIA)[\w-]{12,}|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?/g;
